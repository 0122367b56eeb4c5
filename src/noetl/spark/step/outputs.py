"""Turns the files of a try into the value of the task.

A few rows are encoded as a small payload; many rows stay in the files that Spark wrote.
"""

import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from noetl.results.formats.encoding import PARQUET
from noetl.results.formats.rowsets import RowSetWriter
from noetl.results.formats.tables import EncodedTable, TableParts, ValueHead, refuse_value
from noetl.spark.messages import FileFacts, FrameManifest, SparkAnswer
from noetl.tools.port import Call

SESSIONS_FOLDER = "spark"  # below the staging folder of payloads; it holds one folder per session
MAX_SMALL_ROWS = 10_000  # rows of a small payload
MAX_SMALL_BYTES = 512 << 10  # bytes of a small payload, which is sent with the report


def collect_facts(answer: SparkAnswer) -> dict[str, Any]:
    """The facts of a result that arcs and people see: counts of files, and metrics of Spark."""
    frames = (answer.frames or {}).values()
    files: list[FileFacts] = []
    for frame in frames:
        files += frame.files
    counts = {
        "files": len(files),
        "bytes": sum(file.bytes for file in files),
        "partitions": sum(frame.partitions for frame in frames),
        **answer.metrics,
    }
    for frame in frames:
        if frame.expect:
            return {**counts, "expect": frame.expect}
    return counts


def make_value(call: Call, answer: SparkAnswer) -> Any:
    """The value of the task: JSON, an `EncodedTable`, `TableParts`, or a map of these by name."""
    frames = answer.frames
    if frames is None:
        return answer.value
    tables = {name: _make_frame_value(call, frame) for name, frame in frames.items()}
    if answer.single:
        return tables[""]
    return {**answer.value, **tables}


def _make_frame_value(call: Call, frame: FrameManifest) -> Any:
    files = frame.files
    if frame.path is not None:
        return _make_path_value(frame)
    if not files:
        return {
            "rows": [],
            "row_count": 0,
            "columns": frame.columns,
        }
    row_count = sum(file.rows for file in files)
    size = sum(file.bytes for file in files)
    is_small = row_count <= MAX_SMALL_ROWS and size <= MAX_SMALL_BYTES
    if is_small or call.tables.staging.folder is None:
        return _encode_small(call, frame)
    return _adopt_files(call, frame)


def _make_path_value(frame: FrameManifest) -> dict[str, Any]:
    """The value of a step that wrote to a path of the user."""
    described = {
        "path": frame.path,
        "row_count": frame.rows,
        "columns": frame.columns,
    }
    if frame.skipped:
        return {**described, "skipped": True}
    if not frame.files:  # files in an object store are not counted
        return described
    return {**described, "files": len(frame.files)}


def _encode_small(call: Call, frame: FrameManifest) -> EncodedTable:
    """Encode the rows as a small payload, and remove their files."""
    opened = [pq.ParquetFile(file.path) for file in frame.files]
    schema = opened[0].schema_arrow.remove_metadata()
    try:
        return RowSetWriter(schema, call.tables).write_all(
            batch for file in opened for batch in file.iter_batches()
        )
    finally:
        for file in opened:
            file.close()
        remove_frame(frame)


def _adopt_files(call: Call, frame: FrameManifest) -> TableParts:
    """Adopt the files that Spark wrote as the parts of the result."""
    tables: list[EncodedTable] = []
    for file in frame.files:
        path = Path(file.path)
        draft, staged = call.tables.staging.link_file(path, file.sha256)
        table = EncodedTable(
            staged,
            PARQUET,
            file.rows,
            frame.columns,
            ValueHead(),
            refuse_value,
            draft,
        )
        tables.append(table)

    def close_tables() -> None:
        for table in tables:
            table.close()
        remove_frame(frame)

    return TableParts(tables, frame.columns, close_tables)


def remove_frame(frame: FrameManifest) -> None:
    """Remove the folder of a frame. The folder of its session is removed with the last frame."""
    folder = Path(frame.files[0].path)
    while folder.parent.parent.name != SESSIONS_FOLDER:
        folder = folder.parent
    shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):
        folder.parent.rmdir()
