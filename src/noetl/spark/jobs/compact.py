"""`compact`: events of executions that ended long ago, from the log to files, and partitions that are empty then away.

A file is written and read back, and only then one transaction removes its events from the log, if what it removes has the very
checksums of what was read, and records the file and a tombstone for each execution. Before that transaction the file is
nothing: a later run sweeps it. After it the events are nowhere else. So a death at any line loses nothing and doubles nothing.

Events are deleted by batches rather than by whole partitions, so that one execution that never ends does not keep the others,
and a death costs one file's work; a partition goes once nothing is left in it.
"""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq

from noetl.faults import fault
from noetl.model.errors import Conflict, NoetlError
from noetl.model.ids import SNOWFLAKE_EPOCH_MS, Micros
from noetl.spark.jobs.export import finish_export
from noetl.spark.jobs.lake import LakeStore, claim, sha256_of_file
from noetl.spark.jobs.rows import EVENTS, by_execution, checksum
from noetl.spark.jobs.snapshot import snapshot

COLD = "cold"
CANDIDATES = 2_000  # executions of one file at most
FILE = 200_000  # events of one file, until the execution that they end with is complete
_ALONE = (1852794997, 9)  # who compacts does so alone
_PATIENCE = (
    "2s"  # for a lock that everybody else waits behind; a vacuum that holds it gives way after one
)
_TRIES = 3

_OLD = """
select x.execution_id, e.events from (
    select x.execution_id, x.last_seq from noetl.execution x
    where x.execution_id > %(after)s and x.ended_at < %(before)s and x.status in ('completed', 'failed', 'cancelled')
        and not exists (select from noetl.tombstone t where t.execution_id = x.execution_id)
    order by x.execution_id limit %(limit)s) x,
    lateral (select count(*) as events, max(e.seq) as last_seq from noetl.event e where e.execution_id = x.execution_id) e
where e.last_seq = x.last_seq -- else the projection is behind: next time
order by x.execution_id
"""
_REMOVE = """
with gone as (
    delete from noetl.event e where e.execution_id = any (%(ids)s)
    returning e.execution_id, e.seq, encode(sha256(convert_to(noetl.event_text(e), 'UTF8')), 'hex') as sum)
select g.execution_id, count(*), max(g.seq), encode(sha256(convert_to(string_agg(g.sum, '' order by g.seq), 'UTF8')), 'hex')
from gone g group by g.execution_id
"""
_FILED = "insert into noetl.cold_file (path, bytes, events, sha256, at) values (%s, %s, %s, %s, now()) returning file_id"
_BURIED = """
insert into noetl.tombstone (execution_id, file_id, events, last_seq, sha256, at)
select u.id, %(file)s, u.events, u.last, u.sum, now()
from unnest(%(ids)s::bigint[], %(events)s::bigint[], %(lasts)s::bigint[], %(sums)s::text[]) u (id, events, last, sum)
"""


class NotTheSame(NoetlError):
    """What was to be removed is not what the file holds: nothing was removed."""

    code = "COMPACTION_REFUSED"


@dataclass(frozen=True, slots=True)
class Moved:
    """An execution's events as a file holds them, or as the log did."""

    events: int
    last_seq: int
    sha256: str


@dataclass(slots=True)
class Compacted:
    executions: int = 0
    events: int = 0
    files: int = 0
    partitions: int = 0


def compact(dsn: str, lake: LakeStore, before: Micros) -> Compacted:
    """Executions that ended before then. Conflict when somebody else is at it."""
    done = Compacted()
    with closing(psycopg.connect(dsn, autocommit=True)) as connection:
        (alone,) = connection.execute("select pg_try_advisory_lock(%s, %s)", _ALONE).fetchone() or (
            False,
        )
        if not alone:
            raise Conflict(
                "another compaction runs", hint="nothing was lost; it does the same work"
            )
        with snapshot(dsn) as log:
            claim(lake, log.database())
        finish_export(lake)
        _sweep_files(connection, lake)
        for ids in _old(connection, before):
            done.events += _move(connection, dsn, lake, ids)
            done.executions += len(ids)
            done.files += 1
        done.partitions = _drop(connection, before)
    return done


def _old(connection: "psycopg.Connection[Any]", before: Micros) -> Iterator[list[int]]:
    """Executions for one file each time, oldest first."""
    after = 0
    while rows := connection.execute(
        _OLD, {"after": after, "before": before, "limit": CANDIDATES}
    ).fetchall():
        ids: list[int] = []
        room = FILE
        for execution_id, events in rows:
            if room <= 0:
                break
            ids.append(execution_id)
            room -= events
        after = ids[-1]
        yield ids


# ---- one file ------------------------------------------------------------------------------------------------------------


def _move(connection: "psycopg.Connection[Any]", dsn: str, lake: LakeStore, ids: list[int]) -> int:
    with lake.open_workspace() as work:
        made = work.folder / "events.parquet"
        _write(dsn, ids, made)
        digest, size = sha256_of_file(made), made.stat().st_size
        path = f"{COLD}/{ids[0]}-{ids[-1]}-{digest[:12]}.parquet"
        lake.upload(made, path)
        held = moved(lake.copy_here(path, work.folder))
    fault("compact.written")
    events = sum(each.events for each in held.values())
    with connection.transaction():
        gone = {row[0]: Moved(*row[1:]) for row in connection.execute(_REMOVE, {"ids": ids})}
        _check(held, gone)
        (file,) = connection.execute(_FILED, (path, size, events, digest)).fetchone() or (None,)
        connection.execute(
            _BURIED,
            {
                "file": file,
                "ids": list(held),
                "events": [each.events for each in held.values()],
                "lasts": [each.last_seq for each in held.values()],
                "sums": [each.sha256 for each in held.values()],
            },
        )
        fault("compact.removed")
    fault("compact.committed")
    return events


def _write(dsn: str, ids: list[int], file: Path) -> None:
    listed = ", ".join(map(str, ids))
    with snapshot(dsn) as log, pq.ParquetWriter(file, EVENTS, compression="zstd") as writer:
        for batch in log.events(f"execution_id = any (array[{listed}]::bigint[])"):
            writer.write_batch(batch)


def moved(file: Path) -> dict[int, Moved]:
    """By execution, from what the file holds."""
    found = {}
    for table in by_execution(pq.ParquetFile(file).iter_batches()):
        found[table.column("execution_id")[0].as_py()] = _summed(table)
    return found


def _summed(table: pa.Table) -> Moved:
    return Moved(table.num_rows, max(table.column("seq").to_pylist()), checksum(table))


def _check(held: dict[int, Moved], gone: dict[int, Moved]) -> None:
    for execution_id in sorted(held.keys() | gone.keys()):
        if held.get(execution_id) != gone.get(execution_id):
            raise NotTheSame(
                f"execution {execution_id}: the file holds {held.get(execution_id)}, the log {gone.get(execution_id)}",
                hint="nothing was removed; noetl verify says whether the log is sound",
            )


def _sweep_files(connection: "psycopg.Connection[Any]", lake: LakeStore) -> None:
    """Delete files of runs that died before the log knew of them. Conflict when files that the log knows are not in this lake:
    more history here would be history in two places."""
    known = {path for (path,) in connection.execute("select path from noetl.cold_file")}
    there = set(lake.list_files(f"{COLD}/"))
    if missing := sorted(known - there):
        raise Conflict(
            f"{len(missing)} files of compacted history are not in the lake {lake.name} ({missing[0]} …)",
            hint="NOETL_STORAGE_LAKE names the place they are in; docs/jobs.md says how to move a lake",
        )
    for path in there - known:
        lake.delete(path)


# ---- partitions ------------------------------------------------------------------------------------------------------------


def _drop(connection: "psycopg.Connection[Any]", before: Micros) -> int:
    """Those that are empty for good. One that is in use stays until the next run: nobody is to wait for this."""
    first = max(before // 1_000 - SNOWFLAKE_EPOCH_MS, 0) << 22
    names = [
        name
        for (name,) in connection.execute(
            "select name from noetl.buried_partitions(%s)", (first,)
        ).fetchall()
    ]
    empty = [name for name in names if not _holds(connection, name)]
    return sum(any(_dropped(connection, name, first) for _ in range(_TRIES)) for name in empty)


def _holds(connection: "psycopg.Connection[Any]", name: str) -> bool:
    """It may take a while: what was deleted is passed over."""
    return connection.execute(f'select exists (select from noetl."{name}")').fetchone() == (True,)


def _dropped(connection: "psycopg.Connection[Any]", name: str, first: int) -> bool:
    """Nothing can have come since it was found empty, unless an execution has begun whose id is that old."""
    try:
        with connection.transaction():
            connection.execute(f"set local lock_timeout = '{_PATIENCE}'")
            connection.execute("lock table noetl.event in access exclusive mode")
            still = "select exists (select from noetl.buried_partitions(%s) p where p.name = %s)"
            if connection.execute(still, (first, name)).fetchone() != (True,):
                return False
            connection.execute(f'alter table noetl.event detach partition noetl."{name}"')
            connection.execute(f'drop table noetl."{name}"')
    except psycopg.errors.LockNotAvailable:
        return False
    fault("compact.dropped")
    return True
