"""`verify` and `rebuild`: folds every execution from its events, compares the result with its row,
and replaces wrong rows.

`verify` also finds events that were recorded twice. It compares a row that lags behind the log with
the fold up to the row's last event: a late row is not a difference. Rows that a running server writes
meanwhile are newer; `rebuild` keeps them.
"""

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from noetl.log.projections.stored_state import compress_state, decompress_state
from noetl.spark.jobs.event_files import PROJECTED_CONDITION, stage_events, stage_execution
from noetl.spark.jobs.execution_map import ExecutionMap
from noetl.spark.jobs.folding import FIELDS, fold_execution
from noetl.spark.jobs.folding import PROJECTIONS as SCHEMA
from noetl.spark.jobs.lake import LakeStore
from noetl.spark.jobs.snapshot import LogSnapshot, open_snapshot

STORED_ROWS_QUERY = f"select {', '.join(SCHEMA.names)} from noetl.execution"


@dataclass(frozen=True, slots=True)
class RowDifference:
    """A field in which the stored row differs from the fold. A field of None: the whole row is
    missing on one side."""

    execution_id: str
    field: str | None
    stored: Any
    folded: Any


@dataclass(frozen=True, slots=True)
class RebuildJob:
    """What these jobs need. `unreadable` maps the content hash of a playbook to the reason why it
    cannot be read any more."""

    dsn: str
    lake: LakeStore
    execution_map: ExecutionMap
    unreadable: dict[str, str]


@dataclass(frozen=True, slots=True)
class RebuildCounts:
    executions: int
    written: int


def verify_rows(job: RebuildJob, execution_id: int | None = None) -> Iterator[RowDifference]:
    """The differences between the rows and the folds, of one execution or of all."""
    with (
        tempfile.TemporaryDirectory(prefix="noetl-verify-") as folder,
        open_snapshot(job.dsn) as log,
    ):
        work = Path(folder)
        if execution_id is None:
            files = stage_events(log, job.lake, work, where=PROJECTED_CONDITION)
        else:
            files = stage_execution(log, job.lake, work, execution_id, where=PROJECTED_CONDITION)
        checkpoints = _read_checkpoints(log)
        function = partial(fold_execution, unreadable=job.unreadable)
        for folded in job.execution_map.map_executions(function, SCHEMA, files, work):
            yield from compare_rows(folded, _read_stored_rows(log, folded), checkpoints)
        yield from find_repeated_keys(files)
        yield from _find_rows_without_events(log, execution_id)


def rebuild_rows(job: RebuildJob) -> RebuildCounts:
    """Replace the rows that differ from their folds."""
    executions = written = 0
    function = partial(fold_execution, unreadable=job.unreadable)
    with (
        tempfile.TemporaryDirectory(prefix="noetl-rebuild-") as folder,
        open_snapshot(job.dsn) as log,
        closing(psycopg.connect(job.dsn)) as connection,
    ):
        files = stage_events(log, job.lake, Path(folder))
        for folded in job.execution_map.map_executions(function, SCHEMA, files, Path(folder)):
            found = compare_rows(folded, _read_stored_rows(log, folded), {})
            wrong = {int(difference.execution_id) for difference in found}
            rows = [row for row in folded.to_pylist() if row["execution_id"] in wrong]
            executions += folded.num_rows
            written += _write_rows(connection, rows)
    return RebuildCounts(executions, written)


# ---- the pure part ---------------------------------------------------------------------------------------------------------


def compare_rows(
    folded: pa.Table,
    stored: Iterable[dict[str, Any]],
    checkpoints: dict[int, int],
) -> Iterator[RowDifference]:
    """Compare the rows of the same executions. A row that is not stored is missing, unless the
    checkpoint of its shard is before its last event."""
    known = {row["execution_id"]: row for row in stored}
    for row in folded.to_pylist():
        stored_row = known.get(row["execution_id"])
        if stored_row is not None:
            yield from list_differences(stored_row, row)
        elif row["last_seq"] <= checkpoints.get(row["shard"], row["last_seq"]):
            yield RowDifference(str(row["execution_id"]), None, None, row["status"])


def find_repeated_keys(files: Iterable[Path]) -> Iterator[RowDifference]:
    """Keys of events that an execution has more than once. Every execution is in one file."""
    for file in files:
        table = pq.read_table(file, columns=["execution_id", "dedup_key"])
        counted = table.group_by(["execution_id", "dedup_key"]).aggregate([([], "count_all")])
        for row in counted.filter(pc.field("count_all") > 1).to_pylist():
            stored = f"{row['dedup_key']} {row['count_all']} times"
            yield RowDifference(str(row["execution_id"]), "event", stored, "once")


def list_differences(stored: dict[str, Any], folded: dict[str, Any]) -> Iterator[RowDifference]:
    for field in FIELDS:
        if stored[field] != folded[field]:
            yield RowDifference(
                str(folded["execution_id"]),
                field,
                _show_field(stored[field]),
                _show_field(folded[field]),
            )


def _show_field(value: Any) -> Any:
    return f"{len(value)} bytes" if isinstance(value, bytes) else value


# ---- the database ----------------------------------------------------------------------------------------------------------


def _read_stored_rows(log: LogSnapshot, folded: pa.Table) -> list[dict[str, Any]]:
    ids = ", ".join(map(str, folded.column("execution_id").to_pylist()))
    rows = log.query_rows(f"{STORED_ROWS_QUERY} where execution_id in ({ids})")
    return [{**row, "state": _decode_state(row["state"])} for row in rows]


def _decode_state(stored: bytes | None) -> bytes | None:
    return None if stored is None else decompress_state(stored)


def _read_checkpoints(log: LogSnapshot) -> dict[int, int]:
    """The checkpoint of every shard; 0 if nothing of it is projected."""
    checkpoints = dict.fromkeys(log.read_last_seqs(), 0)
    for row in log.query_rows("select shard_id, seq from noetl.checkpoint"):
        checkpoints[row["shard_id"]] = row["seq"]
    return checkpoints


def _find_rows_without_events(
    log: LogSnapshot, execution_id: int | None
) -> Iterator[RowDifference]:
    """Rows without any event."""
    condition = "true" if execution_id is None else f"x.execution_id = {execution_id}"
    for row in log.query_rows(
        f"select x.execution_id, x.status from noetl.execution x where {condition}"
        " and not exists (select from noetl.event_part e where e.execution_id = x.execution_id)"
        " and not exists (select from noetl.tombstone t where t.execution_id = x.execution_id) order by 1"
    ):
        yield RowDifference(str(row["execution_id"]), None, row["status"], None)


_UPSERT = (
    f"insert into noetl.execution as old ({', '.join(SCHEMA.names)})"
    f" values ({', '.join(f'%({name})s' for name in SCHEMA.names)})"
    f" on conflict (execution_id) do update set {', '.join(f'{name} = excluded.{name}' for name in FIELDS)}"
    " where old.last_seq <= excluded.last_seq or not exists"
    " (select from noetl.event_part e where e.execution_id = old.execution_id and e.last_seq >= old.last_seq)"
)


def _write_rows(connection: "psycopg.Connection[Any]", rows: list[dict[str, Any]]) -> int:
    with connection.transaction(), connection.cursor() as cursor:
        for row in rows:
            state = None if row["state"] is None else compress_state(row["state"])
            cursor.execute(_UPSERT, {**row, "state": state})
    return len(rows)
