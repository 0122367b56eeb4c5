"""`export`: the event log as a lake of Parquet files by day, each event once, in a layout that ClickHouse loads as it is.

An export goes from where the last manifest ended, by (shard, seq), to the last event of now. Its files appear after its manifest
is there; a manifest is written once or not at all. So a crash at any moment repeats work, never rows.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec import Struct

from noetl.faults import fault
from noetl.model.errors import Conflict
from noetl.spark.jobs.lake import LakeStore, claim, sha256_of_file
from noetl.spark.jobs.rows import MOMENT
from noetl.spark.jobs.snapshot import LogSnapshot, snapshot
from noetl.spark.jobs.staged import read_rows

# `observability.noetl_events`: indexed by EventId, ExecutionId, EventType and Status.
LAYOUT = pa.schema(
    [
        ("EventId", pa.int64()),
        ("ExecutionId", pa.int64()),
        ("EventType", pa.string()),
        ("Status", pa.string()),
        ("StepName", pa.string()),
        ("Timestamp", MOMENT),
        ("Duration", pa.float64()),  # milliseconds, of what a worker reports
        ("ErrorMessage", pa.string()),
        ("Payload", pa.string()),  # the event as JSON
        ("CommandId", pa.string()),
        ("Attempt", pa.int32()),
        ("Tenant", pa.int32()),
        ("Shard", pa.int16()),
        ("Seq", pa.int64()),
    ]
)
STARTED, COMPLETED, FAILED = "STARTED", "COMPLETED", "FAILED"
_ENDINGS = {
    STARTED: "enter issued claimed started initialized".split(),
    COMPLETED: "completed done exit evaluated processed accepted".split(),
    FAILED: "failed error dead cancelled quarantined".split(),
}
_STATUSES = {ending: status for status, endings in _ENDINGS.items() for ending in endings}
GROUP = 100_000  # rows of a row group
WAITING = 256 << 20  # bytes of rows that wait to be written
EXPORTED = "events"  # the folder of exported files
MANIFESTS = f"{EXPORTED}/_manifests"


class ExportedFile(Struct, frozen=True):
    """A file of an export; `path` is relative to the folder of events."""

    path: str
    rows: int
    bytes: int
    sha256: str


class ExportManifest(Struct, frozen=True):
    """What one export made. `positions`: by shard, the last event that is exported; `cold`: the last file it knew of."""

    number: int
    positions: dict[int, int] = {}
    cold: int = 0
    staging: str = ""
    files: tuple[ExportedFile, ...] = ()


@dataclass(frozen=True, slots=True)
class Exported:
    events: int
    files: int


def export(dsn: str, lake: LakeStore, history: LakeStore | None = None) -> Exported:
    """`history`: the lake that compacted events are in, if it is another one."""
    with snapshot(dsn) as log:
        claim(lake, log.database())
    last = finish_export(lake)
    with lake.open_workspace(last.number + 1) as work, snapshot(dsn) as log:
        upto = log.last()
        if all(last.positions.get(shard, 0) == seq for shard, seq in upto.items()):
            return Exported(0, 0)
        cold = log.cold()
        events = _new(log, history or lake, last, upto, cold)
        files = _write(events, work.folder, f"{last.number + 1:010}.parquet")
        newest = max((row["file_id"] for row in cold), default=0)
        made = ExportManifest(last.number + 1, upto, newest, work.name, files)
        lake.stage(work, [file.path for file in files])
        fault("export.written")
        if not lake.put_if_absent(f"{MANIFESTS}/{made.number:010}.json", msgspec.json.encode(made)):
            raise Conflict(
                "another export has just ended",
                hint="nothing was lost; the next one goes on from there",
            )
        fault("export.committed")
        _publish(lake, made)
    lake.sweep_staging(made.number)
    return Exported(sum(file.rows for file in files), len(files))


def manifests(lake: LakeStore) -> Iterator[ExportManifest]:
    """Oldest first."""
    for path in lake.list_files(f"{MANIFESTS}/"):
        yield _read_manifest(lake, path)


def finish_export(lake: LakeStore) -> ExportManifest:
    """Publish the files of the last export if it died after its commit, and sweep the rest of staging. Returns the last manifest,
    or an empty one. Call this before you sweep staging: the manifest may name files in it."""
    last = ExportManifest(0)
    for path in lake.list_files(f"{MANIFESTS}/")[-1:]:
        last = _read_manifest(lake, path)
        _publish(lake, last)
    lake.sweep_staging(last.number)
    return last


def _read_manifest(lake: LakeStore, path: str) -> ExportManifest:
    return msgspec.json.decode(lake.read_file(path), type=ExportManifest)


def _publish(lake: LakeStore, made: ExportManifest) -> None:
    for file in made.files:
        lake.publish(made.staging, file.path, f"{EXPORTED}/{file.path}")


# ---- reading -------------------------------------------------------------------------------------------------------------


def _new(
    log: LogSnapshot,
    history: LakeStore,
    last: ExportManifest,
    upto: dict[int, int],
    cold: list[dict[str, Any]],
) -> Iterator[pa.RecordBatch]:
    """Events beyond the last manifest, wherever they are by now."""
    for shard, seq in upto.items():
        yield from log.events(
            f"shard = {shard} and seq > {last.positions.get(shard, 0)} and seq <= {seq}", "seq"
        )
    for row in cold:
        if row["file_id"] > last.cold:
            yield from read_rows(history, row["path"], _beyond(last.positions))


def _beyond(positions: dict[int, int]) -> pc.Expression:
    known = pc.scalar(False)
    for shard, seq in positions.items():
        known = known | ((pc.field("shard") == shard) & (pc.field("seq") <= seq))
    return ~known


# ---- writing -------------------------------------------------------------------------------------------------------------


def _write(batches: Iterator[pa.RecordBatch], folder: Path, name: str) -> tuple[ExportedFile, ...]:
    """A file for every day."""
    with ExitStack() as stack:
        days = _Days(folder, name, stack)
        for batch in batches:
            days.add(layout(batch))
        days.flush()
    return tuple(_made(folder, f"day={day}/{name}", days.rows[day]) for day in sorted(days.rows))


class _Days:
    """Rows wait until there are enough of them: they come by shard, and a shard has events of every day."""

    def __init__(self, folder: Path, name: str, stack: ExitStack) -> None:
        self._folder = folder
        self._name = name
        self._stack = stack
        self._writers: dict[str, pq.ParquetWriter] = {}
        self._waiting: dict[str, list[pa.Table]] = {}
        self._size = 0
        self.rows: dict[str, int] = {}

    def add(self, table: pa.Table) -> None:
        for day, part in by_day(table):
            self._waiting.setdefault(day, []).append(part)
            self.rows[day] = self.rows.get(day, 0) + part.num_rows
        self._size += table.nbytes
        if self._size > WAITING:
            self.flush()

    def flush(self) -> None:
        for day, parts in self._waiting.items():
            self._writer(day).write_table(pa.concat_tables(parts), row_group_size=GROUP)
        self._waiting, self._size = {}, 0

    def _writer(self, day: str) -> pq.ParquetWriter:
        if day not in self._writers:
            (self._folder / f"day={day}").mkdir()
            writer = pq.ParquetWriter(
                self._folder / f"day={day}" / self._name, LAYOUT, compression="zstd"
            )
            self._writers[day] = self._stack.enter_context(writer)
        return self._writers[day]


def _made(folder: Path, path: str, rows: int) -> ExportedFile:
    return ExportedFile(path, rows, (folder / path).stat().st_size, sha256_of_file(folder / path))


def by_day(table: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    days = pc.strftime(table.column("Timestamp"), "%Y-%m-%d")
    for day in pc.unique(days).to_pylist():
        yield day, table.filter(pc.equal(days, day))


# ---- the pure part ---------------------------------------------------------------------------------------------------------


def layout(batch: pa.RecordBatch) -> pa.Table:
    """Rows of EVENTS in LAYOUT."""
    kinds, states = batch.column("event_type").to_pylist(), batch.column("status").to_pylist()
    metas, results = batch.column("meta").to_pylist(), batch.column("result").to_pylist()
    ends = batch.column("at").cast(pa.int64()).to_pylist()
    columns = {
        "EventId": pc.add(
            pc.multiply(batch.column("seq"), 1024), batch.column("shard").cast(pa.int64())
        ),
        "ExecutionId": batch.column("execution_id"),
        "EventType": batch.column("event_type"),
        "Status": pa.array(map(_status, kinds, states), pa.string()),
        "StepName": batch.column("step"),
        "Timestamp": batch.column("at"),
        "Duration": pa.array(map(_duration, metas, ends), pa.float64()),
        "ErrorMessage": pa.array(map(_error, metas, results), pa.string()),
        "Payload": pa.array(map(_payload, metas, results), pa.string()),
        "CommandId": batch.column("command_id"),
        "Attempt": batch.column("attempt"),
        "Tenant": batch.column("tenant"),
        "Shard": batch.column("shard"),
        "Seq": batch.column("seq"),
    }
    return pa.table(columns, schema=LAYOUT)


class _Message(Struct):
    message: str = ""


class _Said(Struct):
    """What is looked for in an event or its envelope."""

    started_at: int | None = None
    error: _Message | str | None = None


_said = msgspec.json.Decoder(_Said)


def _status(kind: str, status: str | None) -> str | None:
    if status is not None:
        return COMPLETED if status == "ok" else FAILED
    return _STATUSES.get(kind.rpartition(".")[2])


def _duration(meta: str, at: int) -> float | None:
    if '"started_at":' not in meta:
        return None
    began = _said.decode(meta).started_at
    return None if not began else (at - began) / 1000


def _error(meta: str, result: str | None) -> str | None:
    for text in (result, meta):
        if text is not None and '"error":' in text:
            found = _said.decode(text).error
            if found is not None:
                return found if isinstance(found, str) else found.message
    return None


def _payload(meta: str, result: str | None) -> str:
    return meta if result is None else f'{meta[:-1]},"result":{result}}}'
