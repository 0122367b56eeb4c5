"""The workload of an execution: the request's payload merged over the playbook's defaults.

It never changes after the execution has started.
"""

from collections.abc import Mapping
from typing import Any

import orjson
from msgspec import Struct

from noetl.model.clock import format_iso
from noetl.model.errors import InvalidInput
from noetl.model.ids import get_creation_time
from noetl.playbook.merging import list_keys_of_both, merge_deep
from noetl.playbook.model import Playbook
from noetl.template.errors import TemplateError, UndefinedError
from noetl.template.rendering import Renderer
from noetl.template.replay_functions import DerivedFunctions
from noetl.template.scopes import ENV_PREFIX, build_identity

WORKLOAD_LIMIT_BYTES = 1024 * 1024


class WorkloadContext(Struct, frozen=True):
    """The facts of an execution that workload defaults may use.

    `now()` is the time at which its id was made. `uuid()` and `random()` are derived from the id.
    So merging again for the same execution gives the same workload.
    """

    execution_id: str = "0"
    path: str = ""
    version: int | None = None
    env: Mapping[str, str] = {}

    def build_names(self) -> dict[str, Any]:
        return {
            **build_identity(self.execution_id, self.path, self.version, "pending"),
            "env": dict(self.env),
        }

    def make_seeded_functions(self, key: str) -> DerivedFunctions:
        return DerivedFunctions(
            f"{self.execution_id}\0workload\0{key}",
            format_iso(get_creation_time(self.execution_id)),
        )


def readable_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that workload defaults may read as `env.*`, without their prefix.

    The server's other variables are not readable, because they include its credentials.
    """
    return {
        name.removeprefix(ENV_PREFIX): value
        for name, value in environment.items()
        if name.startswith(ENV_PREFIX)
    }


def merge_workload(
    playbook: Playbook,
    payload: dict[str, Any] | None,
    beginning: WorkloadContext | None = None,
) -> dict[str, Any]:
    """Merge the payload over the defaults.

    Defaults may have templates that use the payload, earlier keys and the identity of the
    execution. They are rendered once. The payload itself is data and never rendered.
    """
    beginning = beginning or WorkloadContext()
    payload = payload or {}
    merged: dict[str, Any] = dict(payload)
    names = beginning.build_names()
    for key, default in playbook.workload.items():
        given = payload.get(key)
        if key in payload and not (isinstance(given, dict) and isinstance(default, dict)):
            continue
        scope = {**merged, **names, "workload": merged}
        try:
            renderer = Renderer(functions=beginning.make_seeded_functions(key))
            rendered = renderer.render_value(default, scope)
        except TemplateError as error:
            raise InvalidInput(
                f"workload default {key + error.path!r}: {error}", hint=_make_default_hint(error)
            ) from error
        if key in payload:
            rendered = merge_deep(rendered, given)
        merged[key] = rendered
    ordered = {key: merged[key] for key in list_keys_of_both(playbook.workload, payload)}
    size = len(orjson.dumps(ordered))
    if size > WORKLOAD_LIMIT_BYTES:
        raise InvalidInput(
            f"the workload is {size} bytes, the limit is {WORKLOAD_LIMIT_BYTES}",
            hint="pass large data by reference",
        )
    return ordered


def _make_default_hint(error: TemplateError) -> str:
    if isinstance(error, UndefinedError) and error.missing.startswith("env."):
        variable = ENV_PREFIX + error.missing.removeprefix("env.").split(".")[0]
        return f"set {variable} where the server runs, or write `| default(…)`"
    return "defaults may use the payload, earlier keys, execution_id, job.*, now() and env.*"
