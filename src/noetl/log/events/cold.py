"""Reads the events of executions that ended long ago from the Parquet files in `noetl.cold_file`,
one execution at a time.

A file holds whole executions in the order of their ids, so a read needs only a few of its row
groups.
"""

import asyncio
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
        if self._lake is None:
            raise StoreUnavailable(f"events are in {path}, and this process has no lake")
        rows = await asyncio.to_thread(_read_rows, self._lake, path, int(execution_id))
        return [
            RecordedEvent(
                execution_id,
                row["shard"],
                row["seq"],
                row["epoch"],
                join_event(row["meta"], row["result"]),
            )
            for row in rows
        ]


def _read_rows(
    lake: HistoryFiles,
    path: str,
    execution_id: int,
) -> list[dict[str, Any]]:
    import pyarrow as pa  # slow to load, and few processes read files
    import pyarrow.parquet as pq

    try:
        with lake.open_file(path) as file:
            table = pq.read_table(
                file, columns=COLD_EVENT_COLUMNS, filters=[("execution_id", "=", execution_id)]
            )
    except (OSError, pa.ArrowInvalid) as error:
        raise StoreUnavailable(
            f"events are in {path} of {lake.name}, which cannot be read: {error}",
            hint="is the lake where it was? See docs/jobs.md",
        ) from error
    rows: list[dict[str, Any]] = table.sort_by("seq").to_pylist()
    return rows
