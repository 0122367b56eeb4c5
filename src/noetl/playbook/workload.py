"""The workload of an execution: the request's payload merged over the playbook's defaults.

It never changes after the execution has started.
"""

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
    """The facts of an execution that workload defaults may use.

    `now()` is the time at which its id was made. `uuid()` and `random()` are derived from the id.
    So merging again for the same execution gives the same workload.
    """

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
    """Return the variables that workload defaults may read as `env.*`, without their prefix.

    The server's other variables are not readable, because they include its credentials.
    """
    return {
        name.removeprefix(ENV_PREFIX): value
        for name, value in environment.items()
        if name.startswith(ENV_PREFIX)
    }


def merge(
    playbook: Playbook,
    payload: dict[str, Any] | None,
    beginning: Beginning | None = None,
) -> dict[str, Any]:
    """Merge the payload over the defaults.

    Defaults may have templates that use the payload, earlier keys and the identity of the
    execution. They are rendered once. The payload itself is data and never rendered.
    """
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
        if key in payload:
            rendered = over(rendered, given)
        merged[key] = rendered
    ordered = {key: merged[key] for key in _keys_of_both(playbook.workload, payload)}
    size = len(orjson.dumps(ordered))
    if size > LIMIT:
        raise InvalidInput(
            f"the workload is {size} bytes, the limit is {LIMIT}",
            hint="pass large data by reference",
        )
    return ordered


def _hint(error: TemplateError) -> str:
    if isinstance(error, UndefinedError) and error.missing.startswith("env."):
        variable = ENV_PREFIX + error.missing.removeprefix("env.").split(".")[0]
        return f"set {variable} where the server runs, or write `| default(…)`"
    return "defaults may use the payload, earlier keys, execution_id, job.*, now() and env.*"


def over(base: Any, given: Any) -> Any:
    """Merge deeply: maps are merged, any other value replaces the base."""
    if not isinstance(base, dict) or not isinstance(given, dict):
        return given
    merged: dict[Any, Any] = {}
    for key in _keys_of_both(base, given):
        if key not in given:
            merged[key] = base[key]
        elif key not in base:
            merged[key] = given[key]
        else:
            merged[key] = over(base[key], given[key])
    return merged


def _keys_of_both(first: Mapping[Any, Any], second: Mapping[Any, Any]) -> list[Any]:
    """Return the keys of the first map, then those that only the second map has."""
    return list({**first, **second})
