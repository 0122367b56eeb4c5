"""Reads the events of executions that ended long ago from the Parquet files in `noetl.cold_file`,
one execution at a time.

A file holds whole executions in the order of their ids, so a read needs only a few of its row
groups.
"""

import asyncio
from bisect import bisect_right
from typing import Any, BinaryIO, Protocol

from noetl.log.events.event_halves import join_event
from noetl.log.events.port import RecordedEvent
from noetl.model.errors import StoreUnavailable
from noetl.model.ids import ExecutionId

COLD_EVENT_COLUMNS = ["shard", "seq", "epoch", "meta", "result"]


class HistoryFiles(Protocol):
    """The store of these files: a lake in a directory or in an object store."""

    @property
    def name(self) -> str: ...

    def open_file(self, path: str) -> BinaryIO:
        """Open a file for reads at any position. Raises StoreUnavailable if it cannot be read."""
        ...

    async def find_unreadable(self, paths: list[str]) -> list[str]:
        """The paths that this process cannot read. Raises StoreUnavailable if the store cannot be
        reached at all.
        """
        ...


class ColdEvents:
    def __init__(self, lake: HistoryFiles | None) -> None:
        self._lake = lake

    async def find_unreadable(self, paths: list[str]) -> list[str]:
        """The paths that this process cannot read; all of them if it has no lake."""
        if self._lake is None:
            return paths
        return await self._lake.find_unreadable(paths)

    async def read_cold_events(self, path: str, execution_id: ExecutionId) -> list[RecordedEvent]:
        """The events of an execution in order. Raises StoreUnavailable if the file is missing: the
        events are nowhere else.
        """
        rows = await self._read_rows(path, execution_id)
        return _decode_rows(rows, execution_id)

    async def read_cold_page(
        self, path: str, execution_id: ExecutionId, after: int, limit: int
    ) -> list[RecordedEvent]:
        """The first events after a sequence number, in order. Only they are decoded."""
        rows = await self._read_rows(path, execution_id, ("seq", ">", after))
        return _decode_rows(rows.slice(0, limit), execution_id)

    async def read_cold_page_before(
        self, path: str, execution_id: ExecutionId, before: int, limit: int
    ) -> list[RecordedEvent]:
        """The last events before a sequence number, in order. Only they are decoded."""
        rows = await self._read_rows(path, execution_id, ("seq", "<", before))
        return _decode_rows(rows.slice(max(rows.num_rows - limit, 0)), execution_id)

    async def count_cold_events(
        self, path: str, execution_id: ExecutionId, ranges: list[tuple[int, int]]
    ) -> list[int]:
        rows = await self._read_rows(path, execution_id)
        seqs: list[int] = rows.column("seq").to_pylist()
        return [
            max(bisect_right(seqs, upto) - bisect_right(seqs, after), 0) for after, upto in ranges
        ]

    async def _read_rows(self, path: str, execution_id: ExecutionId, *filters: Any) -> Any:
        """The rows in order, as an Arrow table."""
        if self._lake is None:
            raise StoreUnavailable(f"events are in {path}, and this process has no lake")
        wanted = [("execution_id", "=", int(execution_id)), *filters]
        return await asyncio.to_thread(_read_rows, self._lake, path, wanted)


def _decode_rows(rows: Any, execution_id: ExecutionId) -> list[RecordedEvent]:
    return [
        RecordedEvent(
            execution_id,
            row["shard"],
            row["seq"],
            row["epoch"],
            join_event(row["meta"], row["result"]),
        )
        for row in rows.to_pylist()
    ]


def _read_rows(lake: HistoryFiles, path: str, filters: list[tuple[str, str, int]]) -> Any:
    import pyarrow as pa  # slow to load, and few processes read files
    import pyarrow.parquet as pq

    try:
        with lake.open_file(path) as file:
            table = pq.read_table(file, columns=COLD_EVENT_COLUMNS, filters=filters)
    except (OSError, pa.ArrowInvalid) as error:
        raise StoreUnavailable(
            f"events are in {path} of {lake.name}, which cannot be read: {error}",
            hint="is the lake where it was? See docs/jobs.md",
        ) from error
    return table.sort_by("seq")
