"""Turns the files of a try into the value of the task.

A few rows are encoded as a small payload; many rows stay in the files that Spark wrote.
"""

import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from noetl.results.encoding import PARQUET
from noetl.results.rowsets import Writer
from noetl.results.tables import EncodedTable, Head, Parts, nothing
from noetl.spark.messages import FrameManifest, SparkAnswer
from noetl.tools.port import Call

FOLDER = "spark"  # below the staging folder of payloads; it holds one folder per session
FEW = 10_000  # rows of a small payload
SMALL = 512 << 10  # bytes of a small payload, which is sent with the report


def facts(answer: SparkAnswer) -> dict[str, Any]:
    """The facts of a result that arcs and people see: counts of files, and metrics of Spark."""
    frames = answer.get("frames", {}).values()
    files = []
    for frame in frames:
        files += frame["files"]
    counts = {
        "files": len(files),
        "bytes": sum(file["bytes"] for file in files),
        "partitions": sum(frame.get("partitions", 1) for frame in frames),
        **answer.get("spark", {}),
    }
    for frame in frames:
        if frame.get("expect"):
            return {**counts, "expect": frame["expect"]}
    return counts


def value(call: Call, answer: SparkAnswer) -> Any:
    """The value of the task: JSON, a `Table`, `Parts`, or a map of these by name."""
    frames = answer.get("frames")
    if frames is None:
        return answer["value"]
    tables = {name: _frame(call, frame) for name, frame in frames.items()}
    if answer.get("single"):
        return tables[""]
    return {**answer.get("value", {}), **tables}


def _frame(call: Call, frame: FrameManifest) -> Any:
    files = frame["files"]
    if "path" in frame:
        return _path_value(frame)
    if not files:
        return {
            "rows": [],
            "row_count": 0,
            "columns": frame["columns"],
        }
    row_count = sum(file["rows"] for file in files)
    size = sum(file["bytes"] for file in files)
    is_small = row_count <= FEW and size <= SMALL
    if is_small or call.tables.staging.folder is None:
        return _few(call, frame)
    return _many(call, frame)


def _path_value(frame: FrameManifest) -> dict[str, Any]:
    """The value of a step that wrote to a path of the user."""
    described = {
        "path": frame["path"],
        "row_count": frame["rows"],
        "columns": frame["columns"],
    }
    if frame.get("skipped"):
        return {**described, "skipped": True}
    if not frame["files"]:  # files in an object store are not counted
        return described
    return {**described, "files": len(frame["files"])}


def _few(call: Call, frame: FrameManifest) -> EncodedTable:
    """Encode the rows as a small payload, and remove their files."""
    opened = [pq.ParquetFile(file["path"]) for file in frame["files"]]
    schema = opened[0].schema_arrow.remove_metadata()
    try:
        return Writer(schema, call.tables).all(
            batch for file in opened for batch in file.iter_batches()
        )
    finally:
        for file in opened:
            file.close()
        remove(frame)


def _many(call: Call, frame: FrameManifest) -> Parts:
    """Adopt the files that Spark wrote as the parts of the result."""
    tables: list[EncodedTable] = []
    for file in frame["files"]:
        path = Path(file["path"])
        draft, staged = call.tables.staging.adopt(path, file["sha256"])
        table = EncodedTable(
            staged,
            PARQUET,
            file["rows"],
            frame["columns"],
            Head(),
            nothing,
            draft,
        )
        tables.append(table)

    def close_tables() -> None:
        for table in tables:
            table.close()
        remove(frame)

    return Parts(tables, frame["columns"], close_tables)


def remove(frame: FrameManifest) -> None:
    """Remove the folder of a frame. The folder of its session is removed with the last frame."""
    folder = Path(frame["files"][0]["path"])
    while folder.parent.parent.name != FOLDER:
        folder = folder.parent
    shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):
        folder.parent.rmdir()
