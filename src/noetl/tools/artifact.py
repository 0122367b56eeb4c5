"""`artifact`: a value into the store (`put`; its address is `<step>.ref`), or what an address leads to (`ref`).

An address is followed when it belongs to this execution, or came to this command from the server; another execution's, written
into data by whoever, is refused. Rows are copied batch by batch, never held whole.
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
        found = await source(call, call.config.get("put") if reference is None else reference)
        if reference is not None:
            address = found.get("uri") if isinstance(found, dict) else found
            if found is None:
                message = "`ref` is null: it takes an address, such as {{ step.ref }}"
                return Failed(Failure(code="REFERENCE_MISSING", kind="config", message=message))
            if isinstance(address, str) and call.rendering is not None:
                found = await call.rendering.fetched(address)
        return Success(
            await asyncio.to_thread(copied, found, call.tables)
            if isinstance(found, Reader)
            else found
        )


async def source(call: Call, template: Any) -> Any:
    return template if call.rendering is None else await call.rendering.source(template)


def copied(reader: Reader, tables: Tables) -> EncodedTable:
    """The same rows and the same head, as a table of this task; in a thread."""
    try:
        return Writer(reader.schema, tables, reader.head).all(reader.batches())
    finally:
        reader.close()
