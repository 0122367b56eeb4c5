"""`artifact`: stores a value (`put`; its URI is `<step>.ref`), or reads the value of a URI (`ref`).

A URI is resolved if it belongs to this execution, or if the server sent it with this command. Any
other URI is refused, since it may come from untrusted data. Rows are copied in batches, never
loaded at once.
"""

import asyncio
from typing import Any

from noetl.model.errors import Failure
from noetl.results.formats.rowsets import RowSetReader, RowSetWriter
from noetl.results.formats.tables import EncodedTable, TableOptions
from noetl.tools.port import Call, Failed, Outcome, Success


class Artifact:
    kind = "artifact"
    raw = frozenset({"ref", "put"})

    async def run(self, call: Call) -> Outcome:
        reference = call.config.get("ref")
        if reference is None:
            value = await open_artifact_value(call, call.config.get("put"))
        else:
            value = await open_artifact_value(call, reference)
            if value is None:
                message = "`ref` is null: it takes an address, such as {{ step.ref }}"
                return Failed(Failure(code="REFERENCE_MISSING", kind="config", message=message))
            uri = value.get("uri") if isinstance(value, dict) else value
            if isinstance(uri, str) and call.rendering is not None:
                value = await call.rendering.fetched(uri)
        if isinstance(value, RowSetReader):
            value = await asyncio.to_thread(copy_table, value, call.tables)
        return Success(value)


async def open_artifact_value(call: Call, template: Any) -> Any:
    """The rendered value, or a reader if it is a stored row set."""
    if call.rendering is None:
        return template
    return await call.rendering.source(template)


def copy_table(reader: RowSetReader, tables: TableOptions) -> EncodedTable:
    """Copy the rows and the head into a table of this task. Runs in a thread."""
    try:
        return RowSetWriter(reader.schema, tables, reader.head).write_all(reader.batches())
    finally:
        reader.close()
