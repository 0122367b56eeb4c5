"""The merged input of an execution: the playbook's defaults, the request's payload over them. Immutable afterwards."""

from collections.abc import Mapping
from typing import Any

import orjson
from msgspec import Struct

from noetl.model.clock import iso
from noetl.model.errors import InvalidInput
from noetl.model.ids import born
from noetl.playbook.expressions import TemplateError, UndefinedError
from noetl.playbook.functions import Seeded
from noetl.playbook.model import Playbook
from noetl.playbook.scopes import ENV_PREFIX, identity
from noetl.playbook.templates import render_value

LIMIT = 1024 * 1024


class Beginning(Struct, frozen=True):
    """What the defaults of an execution may know of it. `now()` is the moment its id was drawn, and `uuid()` and `random()`
    follow from the id: merging again for the same execution gives the same."""

    execution_id: str = "0"
    path: str = ""
    version: int | None = None
    env: Mapping[str, str] = {}

    def names(self) -> dict[str, Any]:
        return {
            **identity(self.execution_id, self.path, self.version, "pending"),
            "env": dict(self.env),
        }

    def functions(self, key: str) -> Seeded:
        return Seeded(f"{self.execution_id}\0workload\0{key}", iso(born(self.execution_id)))


def readable_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """`env.*` of workload defaults: the variables that are set for playbooks, without their prefix. No other variable of a
    server can be read, because its credentials are among them."""
    return {
        name.removeprefix(ENV_PREFIX): value
        for name, value in environment.items()
        if name.startswith(ENV_PREFIX)
    }


def merge(
    playbook: Playbook, payload: dict[str, Any] | None, beginning: Beginning | None = None
) -> dict[str, Any]:
    """Defaults may use templates over the payload, earlier keys and the identity of the execution. They are rendered once; the
    payload itself is data and never rendered."""
    beginning = beginning or Beginning()
    payload = payload or {}
    merged: dict[str, Any] = dict(payload)
    names = beginning.names()
    for key, default in playbook.workload.items():
        given = payload.get(key)
        if key in payload and not (isinstance(given, dict) and isinstance(default, dict)):
            continue
        scope = {**merged, **names, "workload": merged}
        try:
            rendered = render_value(default, scope, functions=beginning.functions(key))
        except TemplateError as error:
            raise InvalidInput(
                f"workload default {key + error.path!r}: {error}", hint=_hint(error)
            ) from error
        merged[key] = over(rendered, given) if key in payload else rendered
    ordered = {
        key: merged[key]
        for key in [*playbook.workload, *(k for k in payload if k not in playbook.workload)]
    }
    size = len(orjson.dumps(ordered))
    if size > LIMIT:
        raise InvalidInput(
            f"the workload is {size} bytes, the limit is {LIMIT}",
            hint="pass large data by reference",
        )
    return ordered


def _hint(error: TemplateError) -> str:
    missing = error.missing if isinstance(error, UndefinedError) else ""
    if missing.startswith("env."):
        variable = ENV_PREFIX + missing.removeprefix("env.").split(".")[0]
        return f"set {variable} where the server runs, or write `| default(…)`"
    return "defaults may use the payload, earlier keys, execution_id, job.*, now() and env.*"


def over(base: Any, given: Any) -> Any:
    """Deep merge: maps are merged, everything else is replaced."""
    if isinstance(base, dict) and isinstance(given, dict):
        return {
            key: over(base[key], given[key])
            if key in base and key in given
            else given.get(key, base.get(key))
            for key in [*base, *(k for k in given if k not in base)]
        }
    return given
