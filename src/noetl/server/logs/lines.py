"""Printed lines for readers that are in the process of the service. Others read them over HTTP."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from noetl.model.identity import LOCAL_IDENTITY
from noetl.model.ids import ExecutionId
from noetl.server.logs.service import LogService, decode_lines


async def read_printed_lines(
    service: LogService, execution_id: ExecutionId, step: str | None, *, follow: bool
) -> AsyncGenerator[list[dict[str, Any]], None]:
    """The lines that steps printed, in pages, for readers in the process of the service."""
    if follow:
        async with aclosing(service.follow(LOCAL_IDENTITY, execution_id, step)) as pages:
            async for page in pages:
                if isinstance(page, list):
                    yield [line for part in page for line in decode_lines(part)]
        return
    after = 0
    while parts := await service.list_page(LOCAL_IDENTITY, execution_id, step, after):
        after = parts[-1].number
        yield [line for part in parts for line in decode_lines(part)]
