"""Payloads of any size as files of one tier: JSON in the format of `blocks.py`, row sets as
Parquet.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, closing
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec.structs import replace

from noetl.backoff import Backoff
from noetl.model.errors import Conflict, CorruptLog, StoreUnavailable
from noetl.model.reference import Address, Reference, derive_ref_id
from noetl.results.formats import blocks
from noetl.results.formats.encoding import (
    ARROW,
    JSON,
    PARQUET,
    decode_payload,
    is_rowset,
    make_json_reference,
    verify_checksum,
)
from noetl.results.formats.tables import EncodedTable
from noetl.results.port import ByteSource, Tier
from noetl.results.staging import StagedPayload, Staging
from noetl.results.sweeping import FindOrphans, SweepCounts, sweep_orphans

if TYPE_CHECKING:
    from noetl.results.formats import rowsets

log = logging.getLogger(__name__)

T = TypeVar("T")
_MIN_RETRY_DELAY_S = 0.1  # seconds between the first two attempts
_MAX_RETRY_DELAY_S = 5.0  # seconds between later attempts, at most


class LargeStore:
    """Calls are repeated for `patience` seconds while the tier is unavailable. A payload to be
    stored waits in its staged file.
    """

    def __init__(
        self,
        tier: Tier,
        staging: Staging,
        *,
        patience: float = 0.0,
    ) -> None:
        self._tier = tier
        self._patience = patience
        self.staging = staging
        self._footers: rowsets.FooterCache | None = None

    async def put(self, address: Address, value: Any) -> Reference:
        if isinstance(value, EncodedTable):
            reference = await self.put_staged(
                address, value.staged, rows=value.rows, format=value.format
            )
            return replace(reference, rows_at=value.head.at)
        async with AsyncExitStack() as stack:
            staged, summary = await self.retry_unavailable(lambda: self._stage_value(stack, value))
            reference = make_json_reference(
                str(address), self._tier.home, summary.sha256, summary.bytes, summary.rows
            )
            await self.retry_unavailable(lambda: self._write_blocks(address, staged, reference))
        return reference

    async def _stage_value(
        self, stack: AsyncExitStack, value: Any
    ) -> tuple[StagedPayload, blocks.PayloadSummary]:
        """Encode the value into a file that exists until the stack is closed."""
        async with AsyncExitStack() as draft_stack:
            draft = await draft_stack.enter_async_context(self.staging.open_draft())
            summary = await asyncio.to_thread(blocks.write_payload, draft, value)
            staged = draft.finish()
            stack.push_async_exit(draft_stack.pop_all())
        return staged, summary

    async def _write_blocks(
        self, address: Address, staged: StagedPayload, reference: Reference
    ) -> None:
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
            await self._read_source(
                reference, lambda source: blocks.PayloadFile(source, reference.uri)
            )
        except CorruptLog:
            return False
        return True

    async def put_staged(
        self, address: Address, staged: StagedPayload, *, rows: int | None, format: str
    ) -> Reference:
        await self.retry_unavailable(lambda: self._tier.write(address, staged))
        return Reference(
            ref_id=derive_ref_id(str(address)),
            type=self._tier.home,
            uri=str(address),
            sha256=staged.sha256,
            bytes=staged.size,
            rows=rows,
            format=format,
        )

    async def open(self, reference: Reference) -> ByteSource:
        return await self.retry_unavailable(lambda: self._tier.open(reference))

    async def resolve(self, reference: Reference) -> Any:
        def read_value(source: ByteSource) -> Any:
            if not _is_rowset(reference, source):
                return _read_value(reference, source)
            rowset = self._open_rowset(reference, source)
            rowset.verify_sha256(reference.sha256)
            return rowset.read_value()

        return await self.retry_unavailable(lambda: self._read_source(reference, read_value))

    async def read_rows(
        self,
        reference: Reference,
        start: int,
        stop: int,
    ) -> list[Any]:
        def read_rows(source: ByteSource) -> list[Any]:
            rows: list[Any]
            if _is_rowset(reference, source):
                rows = self._open_rowset(reference, source).read_rows(start, stop)
            else:
                rows = _open_payload(reference, source).read_rows(start, stop)
            return rows

        return await self.retry_unavailable(lambda: self._read_source(reference, read_rows))

    def _open_rowset(self, reference: Reference, source: ByteSource) -> "rowsets.RowSetReader":
        from noetl.results.formats import (
            rowsets,  # Arrow is slow to load, and most payloads are JSON
        )

        self._footers = self._footers or rowsets.FooterCache()
        return rowsets.open_rowset_reader(source, reference.uri, self._footers)

    async def _read_source(self, reference: Reference, read: Callable[[ByteSource], T]) -> T:
        source = await self._tier.open(reference)
        return await asyncio.to_thread(_read_and_close, source, read)

    async def sweep_orphans(self, orphans: FindOrphans, before: float) -> SweepCounts:
        return await sweep_orphans(self._tier, orphans, before)

    async def retry_unavailable(self, act: Callable[[], Awaitable[T]]) -> T:
        """Repeat an idempotent call until the store is available or the patience is used up."""
        backoff = Backoff(_MIN_RETRY_DELAY_S, _MAX_RETRY_DELAY_S)
        seconds_left = self._patience
        while True:
            try:
                return await act()
            except StoreUnavailable as error:
                if seconds_left <= 0:
                    raise
                log.warning("result store is waited for", extra={"why": str(error)})
            await asyncio.sleep(backoff.delay)
            seconds_left -= backoff.delay
            backoff.count_failure()


def _read_and_close(source: ByteSource, read: Callable[[ByteSource], T]) -> T:
    with closing(source):
        return read(source)


def _is_rowset(reference: Reference, source: ByteSource) -> bool:
    if reference.format in (ARROW, PARQUET):
        return True
    return reference.format != JSON and is_rowset(source.read(0, 4))


def _open_payload(reference: Reference, source: ByteSource) -> blocks.PayloadFile:
    payload = blocks.PayloadFile(source, reference.uri)
    verify_checksum(reference, payload.summary.sha256)
    return payload


def _read_value(reference: Reference, source: ByteSource) -> Any:
    return decode_payload(_open_payload(reference, source).read_whole(), reference.uri)
