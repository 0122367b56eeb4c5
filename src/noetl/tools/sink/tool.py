"""`sink`: stores the data of a task, an item or a page once.

Another call with the same key changes nothing. `data` is rendered here, so that stored rows are
read in batches. The value is `{row_count}`, and `repeated` if an earlier call has stored the data.
"""

import asyncio
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

import msgspec

from noetl.model.errors import Failure
from noetl.tools.egress.guard import EgressGuard
from noetl.tools.port import Call, Failed, Outcome, Rows, Success, Tool
from noetl.tools.sink import files, http
from noetl.tools.sink.records import SinkError, SinkTarget, unwrap_result
from noetl.tools.sql.statements import SqlError

_MODULE_NAMES = {
    "postgres": "postgres",
    "duckdb": "duckdb",
    "file": "files",
    "object": "objects",
    "http": "http",
}
SINK_MODULES = {kind: f"noetl.tools.sink.{name}" for kind, name in _MODULE_NAMES.items()}


class SinkTool:
    """Writes to a target. It uses the connections of the tools `postgres` and `http`."""

    kind = "sink"
    raw = frozenset({"data"})

    def __init__(
        self,
        postgres: Callable[[], Any],
        http: Callable[[], Tool],
        guard: EgressGuard | None = None,
    ) -> None:
        self._guard = guard or EgressGuard()
        self._postgres = postgres
        self._http = http

    async def run(self, call: Call) -> Outcome:
        try:
            target = msgspec.convert(call.config["target"], SinkTarget)
        except msgspec.ValidationError as error:
            message = f"the target is not valid: {error}"
            return Failed(Failure(code="SINK_TARGET", kind="config", message=message))
        value = await _render_data(call)
        try:
            return await self._write_by_kind(target, call, value)
        except (SinkError, SqlError) as error:
            return Failed(error.failure)

    async def _write_by_kind(self, target: SinkTarget, call: Call, value: Any) -> Outcome:
        """Write to a target of any kind. A kind is imported on first use, in a thread."""
        module = SINK_MODULES.get(target.kind)
        if module is not None and module not in sys.modules:
            await asyncio.to_thread(import_module, module)
        match target.kind:
            case "postgres":
                from noetl.tools.sink import postgres

                return await postgres.write_to_postgres(self._postgres(), target, call, value)
            case "duckdb":
                from noetl.tools.sink import duckdb

                return await duckdb.write_to_duckdb(target, call, value)
            case "file":
                return Success(await files.write_sink_file(target, call, value))
            case "object":
                from noetl.tools.sink import objects

                return Success(await objects.write_object(self._guard, target, call, value))
            case "http":
                return await http.send_rows(self._http(), target, call, value)
            case other:
                message = f"this worker has no sink for {other!r}; it has {', '.join(SINK_MODULES)}"
                return Failed(Failure(code="SINK_KIND", kind="config", message=message))


async def _render_data(call: Call) -> Any:
    """The data to store, which may be stored rows.

    A map is one record. If it has stored rows as a member, they are loaded.
    """
    data = call.config.get("data")
    if call.rendering is None:
        return data
    value = unwrap_result(await call.rendering.rows(data))
    if isinstance(value, dict) and any(isinstance(part, Rows) for part in value.values()):
        return await call.rendering.value(data)
    return value
