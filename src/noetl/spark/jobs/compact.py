"""`compact`: moves the events of old executions from the log to files, and drops empty partitions.

A file is written and read back. Then one transaction removes its events from the log, records the
file, and records a tombstone for each execution. The transaction is rolled back if the removed
events do not have the checksums of the file's events. Before the commit a later run sweeps the file;
after it the events are only in the file. So a crash at any line neither loses nor doubles events.

Events are deleted by batches and not by whole partitions. So one execution that never ends does not
keep the others, and a crash costs the work of one file. A partition is dropped when it is empty.
"""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq

from noetl.faults import hit_fault_point
from noetl.model.errors import Conflict, NoetlError
from noetl.model.ids import SNOWFLAKE_EPOCH_MS, Micros
from noetl.spark.jobs.event_rows import EVENT_SCHEMA, compute_checksum, split_by_execution
from noetl.spark.jobs.export import finish_export
from noetl.spark.jobs.lake import LakeStore, claim_lake, hash_file
from noetl.spark.jobs.snapshot import open_snapshot

COLD_FOLDER = "cold"
MAX_FILE_EXECUTIONS = 2_000  # the most executions of one file
MAX_FILE_EVENTS = 200_000  # events of one file; its last execution may exceed it
_COMPACTION_LOCK = (1852794997, 9)  # advisory lock: one compaction runs at a time
# How long to wait for a lock that blocks all others; a vacuum that holds it gives way after 1 s.
_DROP_LOCK_TIMEOUT = "2s"
_DROP_TRIES = 3  # for the lock of a partition

_OLD_EXECUTIONS = """
select x.execution_id, e.events from (
    select x.execution_id, x.last_seq from noetl.execution x
    where x.execution_id > %(after)s and x.ended_at < %(before)s and x.status in ('completed', 'failed', 'cancelled')
        and not exists (select from noetl.tombstone t where t.execution_id = x.execution_id)
    order by x.execution_id limit %(limit)s) x,
    lateral (select sum(e.count) as events, max(e.last_seq) as last_seq from noetl.event_part e
             where e.execution_id = x.execution_id) e
where e.last_seq = x.last_seq -- else the projection is behind: next time
order by x.execution_id
"""
_REMOVE_EVENTS = """
with gone as (
    delete from noetl.event_part p where p.execution_id = any (%(ids)s) returning p.execution_id, p.last_seq, p.count),
keys as (delete from noetl.event_key k where k.execution_id = any (%(ids)s)),
counted as (select g.execution_id, sum(g.count) as events, max(g.last_seq) as last_seq from gone g group by g.execution_id),
summed as (
    select e.execution_id, string_agg(encode(sha256(convert_to(noetl.event_text(e), 'UTF8')), 'hex'), '' order by e.seq) as sums
    from noetl.event e where e.execution_id = any (%(ids)s) group by e.execution_id)
select c.execution_id, c.events, c.last_seq, encode(sha256(convert_to(s.sums, 'UTF8')), 'hex')
from counted c left join summed s on s.execution_id = c.execution_id
"""
_RECORD_FILE = "insert into noetl.cold_file (path, bytes, events, sha256, at) values (%s, %s, %s, %s, now()) returning file_id"
_RECORD_TOMBSTONES = """
insert into noetl.tombstone (execution_id, file_id, events, last_seq, sha256, at)
select u.id, %(file)s, u.events, u.last, u.sum, now()
from unnest(%(ids)s::bigint[], %(events)s::bigint[], %(lasts)s::bigint[], %(sums)s::text[]) u (id, events, last, sum)
"""


class CompactionMismatch(NoetlError):
    """The events in the log are not those of the file. Nothing was removed."""

    code = "COMPACTION_REFUSED"


@dataclass(frozen=True, slots=True)
class MovedEvents:
    """Counts and checksum of an execution's events, in a file or in the log."""

    events: int
    last_seq: int
    sha256: str


@dataclass(slots=True)
class CompactionCounts:
    executions: int = 0
    events: int = 0
    files: int = 0
    partitions: int = 0


def compact_log(dsn: str, lake: LakeStore, before: Micros) -> CompactionCounts:
    """Compact the executions that ended before a time. Conflict if another compaction runs."""
    done = CompactionCounts()
    with closing(psycopg.connect(dsn, autocommit=True)) as connection:
        row = connection.execute("select pg_try_advisory_lock(%s, %s)", _COMPACTION_LOCK).fetchone()
        if row != (True,):
            raise Conflict(
                "another compaction runs", hint="nothing was lost; it does the same work"
            )
        with open_snapshot(dsn) as log:
            claim_lake(lake, log.read_database_name())
        finish_export(lake)
        _sweep_files(connection, lake)
        for ids in _list_old_executions(connection, before):
            done.events += _move_executions(connection, dsn, lake, ids)
            done.executions += len(ids)
            done.files += 1
        done.partitions = _drop_partitions(connection, before)
    return done


def _list_old_executions(
    connection: "psycopg.Connection[Any]", before: Micros
) -> Iterator[list[int]]:
    """Lists of executions, each for one file, oldest first."""
    after = 0
    while True:
        limits = {"after": after, "before": before, "limit": MAX_FILE_EXECUTIONS}
        rows = connection.execute(_OLD_EXECUTIONS, limits).fetchall()
        if not rows:
            return
        ids: list[int] = []
        events_left = MAX_FILE_EVENTS
        for execution_id, events in rows:
            if events_left <= 0:
                break
            ids.append(execution_id)
            events_left -= events
        after = ids[-1]
        yield ids


# ---- one file ------------------------------------------------------------------------------------------------------------


def _move_executions(
    connection: "psycopg.Connection[Any]",
    dsn: str,
    lake: LakeStore,
    ids: list[int],
) -> int:
    """Move the events of these executions to one file. Returns their number."""
    with lake.open_workspace() as work:
        file = work.folder / "events.parquet"
        _write_events(dsn, ids, file)
        digest, size = hash_file(file), file.stat().st_size
        path = f"{COLD_FOLDER}/{ids[0]}-{ids[-1]}-{digest[:12]}.parquet"
        lake.upload(file, path)
        stored = summarize_file(lake.copy_here(path, work.folder))
    hit_fault_point("compact.written")
    summaries = stored.values()
    events = sum(summary.events for summary in summaries)
    with connection.transaction():
        rows = connection.execute(_REMOVE_EVENTS, {"ids": ids})
        removed = {execution_id: MovedEvents(*summary) for execution_id, *summary in rows}
        _check_same_events(stored, removed)
        row = connection.execute(_RECORD_FILE, (path, size, events, digest)).fetchone()
        tombstones = {
            "file": None if row is None else row[0],
            "ids": list(stored),
            "events": [summary.events for summary in summaries],
            "lasts": [summary.last_seq for summary in summaries],
            "sums": [summary.sha256 for summary in summaries],
        }
        connection.execute(_RECORD_TOMBSTONES, tombstones)
        hit_fault_point("compact.removed")
    hit_fault_point("compact.committed")
    return events


def _write_events(dsn: str, ids: list[int], file: Path) -> None:
    listed = ", ".join(map(str, ids))
    with (
        open_snapshot(dsn) as log,
        pq.ParquetWriter(file, EVENT_SCHEMA, compression="zstd") as writer,
    ):
        for batch in log.read_events(f"execution_id = any (array[{listed}]::bigint[])"):
            writer.write_batch(batch)


def summarize_file(file: Path) -> dict[int, MovedEvents]:
    """The summary of each execution's events in a file."""
    found = {}
    for table in split_by_execution(pq.ParquetFile(file).iter_batches()):
        found[table.column("execution_id")[0].as_py()] = _summarize_events(table)
    return found


def _summarize_events(table: pa.Table) -> MovedEvents:
    last_seq = max(table.column("seq").to_pylist())
    return MovedEvents(table.num_rows, last_seq, compute_checksum(table))


def _check_same_events(stored: dict[int, MovedEvents], removed: dict[int, MovedEvents]) -> None:
    """CompactionMismatch if the removed events are not those of the file."""
    for execution_id in sorted(stored.keys() | removed.keys()):
        in_file, in_log = stored.get(execution_id), removed.get(execution_id)
        if in_file != in_log:
            raise CompactionMismatch(
                f"execution {execution_id}: the file holds {in_file}, the log {in_log}",
                hint="nothing was removed; noetl verify says whether the log is sound",
            )


def _sweep_files(connection: "psycopg.Connection[Any]", lake: LakeStore) -> None:
    """Delete files of runs that died before they recorded the file in the database.

    Conflict if recorded files are not in this lake: history would then be in two places.
    """
    known = {path for (path,) in connection.execute("select path from noetl.cold_file")}
    existing = set(lake.list_files(f"{COLD_FOLDER}/"))
    missing = sorted(known - existing)
    if missing:
        raise Conflict(
            f"{len(missing)} files of compacted history are not in the lake {lake.name} ({missing[0]} …)",
            hint="NOETL_STORAGE_LAKE names the place they are in; docs/jobs.md says how to move a lake",
        )
    for path in existing - known:
        lake.delete(path)


# ---- partitions ------------------------------------------------------------------------------------------------------------


def _drop_partitions(connection: "psycopg.Connection[Any]", before: Micros) -> int:
    """Drop the partitions that stay empty. Returns how many.

    A partition that is in use stays until the next run, so that nobody waits for its lock.
    """
    first = max(before // 1_000 - SNOWFLAKE_EPOCH_MS, 0) << 22
    query = "select name from noetl.buried_partitions(%s)"
    rows = connection.execute(query, (first,)).fetchall()
    names = [name for (name,) in rows]
    empty = [name for name in names if not _partition_has_rows(connection, name)]
    dropped = 0
    for name in empty:
        if any(_drop_partition(connection, name, first) for _ in range(_DROP_TRIES)):
            dropped += 1
    return dropped


def _partition_has_rows(connection: "psycopg.Connection[Any]", name: str) -> bool:
    """Whether a partition has rows. It may take a while, because dead rows are scanned."""
    return connection.execute(f'select exists (select from noetl."{name}")').fetchone() == (True,)


def _drop_partition(connection: "psycopg.Connection[Any]", name: str, first: int) -> bool:
    """Drop an empty partition. False if its lock is not free, or it is not buried any more: an
    execution with an id that old has begun since."""
    try:
        with connection.transaction():
            connection.execute(f"set local lock_timeout = '{_DROP_LOCK_TIMEOUT}'")
            connection.execute("lock table noetl.event_part in access exclusive mode")
            still = "select exists (select from noetl.buried_partitions(%s) p where p.name = %s)"
            row = connection.execute(still, (first, name)).fetchone()
            if row != (True,):
                return False
            connection.execute(f'alter table noetl.event_part detach partition noetl."{name}"')
            connection.execute(f'drop table noetl."{name}"')
    except psycopg.errors.LockNotAvailable:
        return False
    hit_fault_point("compact.dropped")
    return True
