"""`artifact`: stores a value (`put`; its URI is `<step>.ref`), or reads the value of a URI (`ref`).

A URI is resolved if it belongs to this execution, or if the server sent it with this command. Any
other URI is refused, since it may come from untrusted data. Rows are copied in batches, never
loaded at once.
"""

import asyncio
from typing import Any

from noetl.model.errors import Failure
from noetl.results.rowsets import Reader, Writer
from noetl.results.tables import EncodedTable, Tables
from noetl.tools.port import Call, Failed, Outcome, Success


class Artifact:
    kind = "artifact"
    raw = frozenset({"ref", "put"})

    async def run(self, call: Call) -> Outcome:
        reference = call.config.get("ref")
        if reference is None:
            value = await source(call, call.config.get("put"))
        else:
            value = await source(call, reference)
            if value is None:
                message = "`ref` is null: it takes an address, such as {{ step.ref }}"
                return Failed(Failure(code="REFERENCE_MISSING", kind="config", message=message))
            uri = value.get("uri") if isinstance(value, dict) else value
            if isinstance(uri, str) and call.rendering is not None:
                value = await call.rendering.fetched(uri)
        if isinstance(value, Reader):
            value = await asyncio.to_thread(copied, value, call.tables)
        return Success(value)


async def source(call: Call, template: Any) -> Any:
    """The rendered value, or a reader if it is a stored row set."""
    if call.rendering is None:
        return template
    return await call.rendering.source(template)


def copied(reader: Reader, tables: Tables) -> EncodedTable:
    """Copy the rows and the head into a table of this task. Runs in a thread."""
    try:
        return Writer(reader.schema, tables, reader.head).all(reader.batches())
    finally:
        reader.close()
