"""Provides the events of a snapshot as files of this machine.

Events in the log are written to files in a folder. Compacted files are used where they are, or
copied to that folder from an object store, because Spark has no access to it.

Every file holds whole executions, in order, and every execution is in one file.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from noetl.spark.jobs.event_rows import EVENT_SCHEMA
from noetl.spark.jobs.lake import LakeStore
from noetl.spark.jobs.snapshot import LogSnapshot

MAX_TASK_EVENTS = 50_000  # events of one task; its last execution may exceed it
PROJECTED_CONDITION = "coalesce(e.seq <= (select x.last_seq from noetl.execution x where x.execution_id = e.execution_id), true)"


def stage_events(
    log: LogSnapshot,
    lake: LakeStore,
    work: Path,
    *,
    where: str = "true",
    ids: tuple[int, int] | None = None,
) -> list[Path]:
    """The files of all executions, the compacted ones first, because they are older.

    With `ids`, the files hold at least the executions from the first id to before the second.
    """
    cold = [lake.copy_here(row["path"], work) for row in log.list_cold_files(ids)]
    if ids is None:
        condition = f"{where} and true"
    else:
        condition = f"{where} and e.execution_id >= {ids[0]} and e.execution_id < {ids[1]}"
    return cold + write_event_files(log.read_events(condition), work, "hot")


def stage_execution(
    log: LogSnapshot,
    lake: LakeStore,
    work: Path,
    execution_id: int,
    *,
    where: str = "true",
) -> list[Path]:
    """The files of one execution."""
    found = log.query_rows(
        f"select path from noetl.tombstone join noetl.cold_file using (file_id) where execution_id = {execution_id}"
    )
    if found:
        rows = read_lake_rows(lake, found[0]["path"], ds.field("execution_id") == execution_id)
        return write_event_files(rows, work, "cold")
    return write_event_files(
        log.read_events(f"e.execution_id = {execution_id} and {where}"), work, "hot"
    )


def read_lake_rows(lake: LakeStore, path: str, where: Any) -> Iterator[pa.RecordBatch]:
    """The rows of one file for which an expression holds, in order. Row groups without such rows
    are not read."""
    with lake.open_file(path) as file:
        fragment = ds.ParquetFileFormat().make_fragment(file)
        yield from fragment.to_batches(schema=EVENT_SCHEMA, filter=where)


def write_event_files(
    batches: Iterator[pa.RecordBatch],
    work: Path,
    name: str,
) -> list[Path]:
    """Write the batches to files that are cut between executions."""
    files: list[Path] = []
    writer: pq.ParquetWriter | None = None
    size, last_id = 0, None
    for batch in batches:
        if not batch.num_rows:
            continue
        ids = batch.column("execution_id").to_numpy()
        start = 0
        if writer is not None and size >= MAX_TASK_EVENTS:
            start = _count_leading(ids, last_id)
            writer.write_batch(batch.slice(0, start))
            if start < len(ids):
                writer.close()
                writer, size = None, 0
        if start < len(ids):
            if writer is None:
                files.append(work / f"{name}-{len(files):05}.parquet")
                writer = pq.ParquetWriter(
                    files[-1],
                    EVENT_SCHEMA,
                    compression="zstd",
                    compression_level=1,
                )
            writer.write_batch(batch.slice(start))
            size += len(ids) - start
            last_id = ids[-1]
    if writer is not None:
        writer.close()
    return files


def _count_leading(ids: Any, execution_id: Any) -> int:
    """How many of the first ids are this one."""
    is_other = ids != execution_id
    if not is_other.any():
        return len(ids)
    return int(is_other.argmax())
