"""Payloads of any size as files of one tier: JSON in the format of `blocks.py`, row sets as
Parquet.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, closing
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec.structs import replace

from noetl.model.errors import Conflict, CorruptLog, StoreUnavailable
from noetl.model.reference import Address, Reference
from noetl.results import blocks
from noetl.results.encoding import (
    ARROW,
    JSON,
    PARQUET,
    decoded,
    is_rowset,
    ref_id_of,
    reference_to,
    verify,
)
from noetl.results.port import ByteSource, Tier
from noetl.results.staging import Staged, Staging
from noetl.results.sweeping import Judge, Swept, sweep
from noetl.results.tables import EncodedTable

if TYPE_CHECKING:
    from noetl.results import rowsets

log = logging.getLogger(__name__)

T = TypeVar("T")
_SHORTEST = 0.1  # seconds between the first two attempts
_LONGEST = 5.0  # seconds between later attempts, at most


class Large:
    """Calls are repeated for `patience` seconds while the tier is unavailable. A payload to be
    stored waits in its staged file.
    """

    def __init__(self, tier: Tier, staging: Staging, *, patience: float = 0.0) -> None:
        self._tier = tier
        self._patience = patience
        self.staging = staging
        self._footers: rowsets.Footers | None = None

    async def put(self, address: Address, value: Any) -> Reference:
        if isinstance(value, EncodedTable):
            reference = await self.put_staged(
                address, value.staged, rows=value.rows, format=value.format
            )
            return replace(reference, rows_at=value.head.at)
        async with AsyncExitStack() as stack:
            staged, summary = await self.patiently(lambda: self._staged(stack, value))
            reference = reference_to(
                str(address), self._tier.home, summary.sha256, summary.bytes, summary.rows
            )
            await self.patiently(lambda: self._write_blocks(address, staged, reference))
        return reference

    async def _staged(self, stack: AsyncExitStack, value: Any) -> tuple[Staged, blocks.Summary]:
        """Encode the value into a file that exists until the stack is closed."""
        async with AsyncExitStack() as draft_stack:
            draft = await draft_stack.enter_async_context(self.staging.draft())
            summary = await asyncio.to_thread(blocks.write, draft, value)
            staged = draft.staged()
            stack.push_async_exit(draft_stack.pop_all())
        return staged, summary

    async def _write_blocks(self, address: Address, staged: Staged, reference: Reference) -> None:
        try:
            await self._tier.write(address, staged)
        except Conflict:
            if await self._is_whole(reference):
                raise
            await self._tier.delete(address)
            await self._tier.write(address, staged)

    async def _is_whole(self, reference: Reference) -> bool:
        """False if a file system has damaged the stored payload. Then no reader can have used it."""
        try:
            await self._read(reference, lambda source: blocks.Payload(source, reference.uri))
        except CorruptLog:
            return False
        return True

    async def put_staged(
        self, address: Address, staged: Staged, *, rows: int | None, format: str
    ) -> Reference:
        await self.patiently(lambda: self._tier.write(address, staged))
        return Reference(
            ref_id=ref_id_of(str(address)),
            type=self._tier.home,
            uri=str(address),
            sha256=staged.sha256,
            bytes=staged.size,
            rows=rows,
            format=format,
        )

    async def open(self, reference: Reference) -> ByteSource:
        return await self.patiently(lambda: self._tier.open(reference))

    async def resolve(self, reference: Reference) -> Any:
        def read_value(source: ByteSource) -> Any:
            if not _is_rowset(reference, source):
                return _whole(reference, source)
            rowset = self._rowset(reference, source)
            rowset.check(reference.sha256)
            return rowset.value()

        return await self.patiently(lambda: self._read(reference, read_value))

    async def rows(self, reference: Reference, start: int, stop: int) -> list[Any]:
        def read_rows(source: ByteSource) -> list[Any]:
            rows: list[Any]
            if _is_rowset(reference, source):
                rows = self._rowset(reference, source).rows(start, stop)
            else:
                rows = _payload(reference, source).rows(start, stop)
            return rows

        return await self.patiently(lambda: self._read(reference, read_rows))

    def _rowset(self, reference: Reference, source: ByteSource) -> "rowsets.Reader":
        from noetl.results import rowsets  # Arrow is slow to load, and most payloads are JSON

        self._footers = self._footers or rowsets.Footers()
        return rowsets.read(source, reference.uri, self._footers)

    async def _read(self, reference: Reference, read: Callable[[ByteSource], T]) -> T:
        source = await self._tier.open(reference)
        return await asyncio.to_thread(_closing, source, read)

    async def sweep(self, orphans: Judge, before: float) -> Swept:
        return await sweep(self._tier, orphans, before)

    async def patiently(self, act: Callable[[], Awaitable[T]]) -> T:
        """Repeat an idempotent call until the store is available or the patience is used up."""
        delay = _SHORTEST
        seconds_left = self._patience
        while True:
            try:
                return await act()
            except StoreUnavailable as error:
                if seconds_left <= 0:
                    raise
                log.warning("result store is waited for", extra={"why": str(error)})
            await asyncio.sleep(delay)
            seconds_left -= delay
            delay = min(2 * delay, _LONGEST)


def _closing(source: ByteSource, read: Callable[[ByteSource], T]) -> T:
    with closing(source):
        return read(source)


def _is_rowset(reference: Reference, source: ByteSource) -> bool:
    if reference.format in (ARROW, PARQUET):
        return True
    return reference.format != JSON and is_rowset(source.read(0, 4))


def _payload(reference: Reference, source: ByteSource) -> blocks.Payload:
    payload = blocks.Payload(source, reference.uri)
    verify(reference, payload.summary.sha256)
    return payload


def _whole(reference: Reference, source: ByteSource) -> Any:
    return decoded(_payload(reference, source).whole(), reference.uri)
