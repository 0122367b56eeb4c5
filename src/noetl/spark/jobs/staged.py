"""The events of a snapshot as files of this machine: those in the log are written to a folder, those that were moved are read
where they are, or copied to that folder from an object store: Spark itself has no access to one.

Every file holds whole executions, in order, and every execution is in one file.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from noetl.spark.jobs.lake import LakeStore
from noetl.spark.jobs.rows import EVENTS
from noetl.spark.jobs.snapshot import LogSnapshot

FILE = 50_000  # events of one task, until the execution that they end with is complete
PROJECTED = "coalesce(e.seq <= (select x.last_seq from noetl.execution x where x.execution_id = e.execution_id), true)"


def staged(
    log: LogSnapshot,
    lake: LakeStore,
    work: Path,
    *,
    where: str = "true",
    ids: tuple[int, int] | None = None,
) -> list[Path]:
    """All executions, the moved ones first: these are older. `ids`: at least those from the first to before the last."""
    cold = [lake.copy_here(row["path"], work) for row in log.cold(ids)]
    within = "true" if ids is None else f"e.execution_id >= {ids[0]} and e.execution_id < {ids[1]}"
    return cold + write(log.events(f"{where} and {within}"), work, "hot")


def staged_one(
    log: LogSnapshot, lake: LakeStore, work: Path, execution_id: int, *, where: str = "true"
) -> list[Path]:
    """One execution."""
    found = log.rows(
        f"select path from noetl.tombstone join noetl.cold_file using (file_id) where execution_id = {execution_id}"
    )
    if found:
        rows = read_rows(lake, found[0]["path"], ds.field("execution_id") == execution_id)
        return write(rows, work, "cold")
    return write(log.events(f"e.execution_id = {execution_id} and {where}"), work, "hot")


def read_rows(lake: LakeStore, path: str, where: Any) -> Iterator[pa.RecordBatch]:
    """Rows of one file for which an expression holds, in order. Row groups without any are not read."""
    with lake.open_file(path) as file:
        yield from (
            ds.ParquetFileFormat().make_fragment(file).to_batches(schema=EVENTS, filter=where)
        )


def write(batches: Iterator[pa.RecordBatch], work: Path, name: str) -> list[Path]:
    """As files that are cut between executions."""
    files: list[Path] = []
    writer: pq.ParquetWriter | None = None
    size, last = 0, None
    for batch in batches:
        if not batch.num_rows:
            continue
        ids = batch.column("execution_id").to_numpy()
        start = 0
        if writer is not None and size >= FILE:
            start = int((ids != last).argmax()) if (ids != last).any() else len(ids)
            writer.write_batch(batch.slice(0, start))
            if start < len(ids):
                writer.close()
                writer, size = None, 0
        if start < len(ids):
            if writer is None:
                files.append(work / f"{name}-{len(files):05}.parquet")
                writer = pq.ParquetWriter(
                    files[-1], EVENTS, compression="zstd", compression_level=1
                )
            writer.write_batch(batch.slice(start))
            size += len(ids) - start
            last = ids[-1]
    if writer is not None:
        writer.close()
    return files
