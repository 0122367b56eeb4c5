"""`export`: writes the event log to Parquet files by day, each event once, in ClickHouse's layout.

An export covers the events after those of the last manifest, by (shard, seq), up to the last event
of now. Its files become visible after its manifest is written, and a manifest is written once or
not at all. So a crash at any moment repeats work, but never rows.
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

from noetl.faults import hit_fault_point
from noetl.model.errors import Conflict
from noetl.spark.jobs.event_files import read_lake_rows
from noetl.spark.jobs.event_rows import MOMENT_TYPE
from noetl.spark.jobs.lake import LakeStore, claim_lake, hash_file
from noetl.spark.jobs.snapshot import LogSnapshot, open_snapshot

# `observability.noetl_events`: indexed by EventId, ExecutionId, EventType and Status.
LAYOUT = pa.schema(
    [
        ("EventId", pa.int64()),
        ("ExecutionId", pa.int64()),
        ("EventType", pa.string()),
        ("Status", pa.string()),
        ("StepName", pa.string()),
        ("Timestamp", MOMENT_TYPE),
        ("Duration", pa.float64()),  # milliseconds; only of events that a worker reports
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
ROW_GROUP_ROWS = 100_000  # rows of a row group
MAX_UNWRITTEN_BYTES = 256 << 20  # bytes of rows that are buffered before they are written
EXPORT_FOLDER = "events"  # the folder of exported files
MANIFEST_FOLDER = f"{EXPORT_FOLDER}/_manifests"


class ExportedFile(Struct, frozen=True):
    """A file of an export; `path` is relative to the folder of events."""

    path: str
    rows: int
    bytes: int
    sha256: str


class ExportManifest(Struct, frozen=True):
    """The files of one export. `positions` holds the last exported event of every shard; `cold` is
    the id of the last compacted file that the export knew."""

    number: int
    positions: dict[int, int] = {}
    cold: int = 0
    staging: str = ""
    files: tuple[ExportedFile, ...] = ()


@dataclass(frozen=True, slots=True)
class ExportCounts:
    events: int
    files: int


def export_log(dsn: str, lake: LakeStore, history: LakeStore | None = None) -> ExportCounts:
    """Export the new events. `history` is the lake of compacted events, if it is another one."""
    with open_snapshot(dsn) as log:
        claim_lake(lake, log.read_database_name())
    last = finish_export(lake)
    number = last.number + 1
    with lake.open_workspace(number) as work, open_snapshot(dsn) as log:
        upto = log.read_last_seqs()
        if all(last.positions.get(shard, 0) == seq for shard, seq in upto.items()):
            return ExportCounts(0, 0)
        cold = log.list_cold_files()
        events = _read_new_events(log, history or lake, last, upto, cold)
        files = _write_days(events, work.folder, f"{number:010}.parquet")
        newest_file = max((row["file_id"] for row in cold), default=0)
        manifest = ExportManifest(number, upto, newest_file, work.name, files)
        lake.stage(work, [file.path for file in files])
        hit_fault_point("export.written")
        data = msgspec.json.encode(manifest)
        if not lake.put_if_absent(f"{MANIFEST_FOLDER}/{number:010}.json", data):
            raise Conflict(
                "another export has just ended",
                hint="nothing was lost; the next one goes on from there",
            )
        hit_fault_point("export.committed")
        _publish_export(lake, manifest)
    lake.sweep_staging(number)
    return ExportCounts(sum(file.rows for file in files), len(files))


def read_manifests(lake: LakeStore) -> Iterator[ExportManifest]:
    """All manifests, oldest first."""
    for path in lake.list_files(f"{MANIFEST_FOLDER}/"):
        yield _read_manifest(lake, path)


def finish_export(lake: LakeStore) -> ExportManifest:
    """Publish the files of the last export if it died after its commit, and sweep staging.

    Returns the last manifest, or an empty one. Call this before you sweep staging yourself: the
    manifest may name files in it.
    """
    last = ExportManifest(0)
    for path in lake.list_files(f"{MANIFEST_FOLDER}/")[-1:]:
        last = _read_manifest(lake, path)
        _publish_export(lake, last)
    lake.sweep_staging(last.number)
    return last


def _read_manifest(lake: LakeStore, path: str) -> ExportManifest:
    return msgspec.json.decode(lake.read_file(path), type=ExportManifest)


def _publish_export(lake: LakeStore, manifest: ExportManifest) -> None:
    for file in manifest.files:
        lake.publish(manifest.staging, file.path, f"{EXPORT_FOLDER}/{file.path}")


# ---- reading -------------------------------------------------------------------------------------------------------------


def _read_new_events(
    log: LogSnapshot,
    history: LakeStore,
    last: ExportManifest,
    upto: dict[int, int],
    cold: list[dict[str, Any]],
) -> Iterator[pa.RecordBatch]:
    """The events after the last manifest, from the log and from compacted files."""
    for shard, seq in upto.items():
        after = last.positions.get(shard, 0)
        yield from log.read_events(
            f"shard = {shard} and part_seq > {after} and seq > {after} and seq <= {seq}",
            "part_seq, seq",
        )
    for row in cold:
        if row["file_id"] > last.cold:
            yield from read_lake_rows(history, row["path"], _make_position_filter(last.positions))


def _make_position_filter(positions: dict[int, int]) -> pc.Expression:
    """The condition for events after these positions."""
    is_known = pc.scalar(False)
    for shard, seq in positions.items():
        is_shard = pc.field("shard") == shard
        is_known = is_known | (is_shard & (pc.field("seq") <= seq))
    return ~is_known


# ---- writing -------------------------------------------------------------------------------------------------------------


def _write_days(
    batches: Iterator[pa.RecordBatch],
    folder: Path,
    name: str,
) -> tuple[ExportedFile, ...]:
    """Write the events to a file for every day."""
    with ExitStack() as stack:
        days = _DayWriters(folder, name, stack)
        for batch in batches:
            days.add_table(convert_to_layout(batch))
        days.flush()
    files = []
    for day, rows in sorted(days.rows.items()):
        files.append(_describe_exported(folder, f"day={day}/{name}", rows))
    return tuple(files)


class _DayWriters:
    """Buffers rows by day: they come by shard, and a shard has events of every day."""

    def __init__(self, folder: Path, name: str, stack: ExitStack) -> None:
        self._folder = folder
        self._name = name
        self._stack = stack
        self._writers: dict[str, pq.ParquetWriter] = {}
        self._waiting: dict[str, list[pa.Table]] = {}
        self._size = 0
        self.rows: dict[str, int] = {}

    def add_table(self, table: pa.Table) -> None:
        for day, part in split_by_day(table):
            self._waiting.setdefault(day, []).append(part)
            self.rows[day] = self.rows.get(day, 0) + part.num_rows
        self._size += table.nbytes
        if self._size > MAX_UNWRITTEN_BYTES:
            self.flush()

    def flush(self) -> None:
        for day, parts in self._waiting.items():
            self._open_day(day).write_table(pa.concat_tables(parts), row_group_size=ROW_GROUP_ROWS)
        self._waiting, self._size = {}, 0

    def _open_day(self, day: str) -> pq.ParquetWriter:
        if day not in self._writers:
            (self._folder / f"day={day}").mkdir()
            writer = pq.ParquetWriter(
                self._folder / f"day={day}" / self._name, LAYOUT, compression="zstd"
            )
            self._writers[day] = self._stack.enter_context(writer)
        return self._writers[day]


def _describe_exported(folder: Path, path: str, rows: int) -> ExportedFile:
    file = folder / path
    return ExportedFile(path, rows, file.stat().st_size, hash_file(file))


def split_by_day(table: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    """Split the rows by the day of their timestamp, in UTC."""
    days = pc.strftime(table.column("Timestamp"), "%Y-%m-%d")
    for day in pc.unique(days).to_pylist():
        yield day, table.filter(pc.equal(days, day))


# ---- the pure part ---------------------------------------------------------------------------------------------------------


def convert_to_layout(batch: pa.RecordBatch) -> pa.Table:
    """Convert rows of the log to the exported layout."""
    kinds = batch.column("event_type").to_pylist()
    states = batch.column("status").to_pylist()
    metas = batch.column("meta").to_pylist()
    results = batch.column("result").to_pylist()
    ends = batch.column("at").cast(pa.int64()).to_pylist()
    shards = batch.column("shard").cast(pa.int64())
    columns = {
        "EventId": pc.add(pc.multiply(batch.column("seq"), 1024), shards),
        "ExecutionId": batch.column("execution_id"),
        "EventType": batch.column("event_type"),
        "Status": pa.array(map(_find_status, kinds, states), pa.string()),
        "StepName": batch.column("step"),
        "Timestamp": batch.column("at"),
        "Duration": pa.array(map(_compute_duration, metas, ends), pa.float64()),
        "ErrorMessage": pa.array(map(_find_error_message, metas, results), pa.string()),
        "Payload": pa.array(map(_make_payload, metas, results), pa.string()),
        "CommandId": batch.column("command_id"),
        "Attempt": batch.column("attempt"),
        "Tenant": batch.column("tenant"),
        "Shard": batch.column("shard"),
        "Seq": batch.column("seq"),
    }
    return pa.table(columns, schema=LAYOUT)


class _ErrorMessage(Struct):
    message: str = ""


class _EventFields(Struct):
    """The fields of an event or its envelope that the layout needs."""

    started_at: int | None = None
    error: _ErrorMessage | str | None = None


_fields_decoder = msgspec.json.Decoder(_EventFields)


def _find_status(kind: str, status: str | None) -> str | None:
    if status is not None:
        return COMPLETED if status == "ok" else FAILED
    return _STATUSES.get(kind.rpartition(".")[2])


def _compute_duration(meta: str, at: int) -> float | None:
    if '"started_at":' not in meta:
        return None
    started_at = _fields_decoder.decode(meta).started_at
    if not started_at:
        return None
    return (at - started_at) / 1000


def _find_error_message(meta: str, result: str | None) -> str | None:
    """The error message of an event, from its envelope or from the event itself."""
    for text in (result, meta):
        if text is None or '"error":' not in text:
            continue
        error = _fields_decoder.decode(text).error
        if error is not None:
            return error if isinstance(error, str) else error.message
    return None


def _make_payload(meta: str, result: str | None) -> str:
    """The event as JSON, with its result inside."""
    if result is None:
        return meta
    return f'{meta[:-1]},"result":{result}}}'
