"""From the files of a try to the value of the task: a few rows as they are, many as the files that Spark wrote."""

import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from noetl.results.encoding import PARQUET
from noetl.results.rowsets import Writer
from noetl.results.tables import EncodedTable, Head, Parts, nothing
from noetl.tools.port import Call

FOLDER = "spark"  # below where payloads are staged: one folder for every session
FEW = 10_000  # rows
SMALL = 512 << 10  # bytes: these become one small payload that rides with the report


def facts(answer: dict[str, Any]) -> dict[str, Any]:
    """What arcs and people may know: counts of files, and what Spark says of its work."""
    frames = answer.get("frames", {}).values()
    files = [file for frame in frames for file in frame["files"]]
    told = {
        "files": len(files),
        "bytes": sum(file["bytes"] for file in files),
        "partitions": sum(frame.get("partitions", 1) for frame in frames),
        **answer.get("spark", {}),
    }
    expect: dict[str, int] = next((frame["expect"] for frame in frames if frame.get("expect")), {})
    return {**told, "expect": expect} if expect else told


def value(call: Call, answer: dict[str, Any]) -> Any:
    """A JSON value, a `Table`, `Parts`, or a map of these by name."""
    frames = answer.get("frames")
    if frames is None:
        return answer["value"]
    made = {name: _frame(call, frame) for name, frame in frames.items()}
    return made[""] if answer.get("single") else {**answer.get("value", {}), **made}


def _frame(call: Call, frame: dict[str, Any]) -> Any:
    files = frame["files"]
    if "path" in frame:
        told = {"path": frame["path"], "row_count": frame["rows"], "columns": frame["columns"]}
        if frame.get("skipped"):
            return {**told, "skipped": True}
        return (
            {**told, "files": len(files)} if files else told
        )  # those in an object store nobody has counted
    if not files:
        return {"rows": [], "row_count": 0, "columns": frame["columns"]}
    rows = sum(file["rows"] for file in files)
    if call.tables.staging.folder is None or (
        rows <= FEW and sum(file["bytes"] for file in files) <= SMALL
    ):
        return _few(call, frame)
    return _many(call, frame)


def _few(call: Call, frame: dict[str, Any]) -> EncodedTable:
    """Encoded anew, as small row sets are; the files are not needed any more."""
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


def _many(call: Call, frame: dict[str, Any]) -> Parts:
    tables: list[EncodedTable] = []
    for file in frame["files"]:
        draft, staged = call.tables.staging.adopt(Path(file["path"]), file["sha256"])
        tables.append(
            EncodedTable(staged, PARQUET, file["rows"], frame["columns"], Head(), nothing, draft)
        )

    def close() -> None:
        for table in tables:
            table.close()
        remove(frame)

    return Parts(tables, frame["columns"], close)


def remove(frame: dict[str, Any]) -> None:
    """Its folder; that of its session goes with the last one in it."""
    folder = Path(frame["files"][0]["path"])
    while folder.parent.parent.name != FOLDER:
        folder = folder.parent
    shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):
        folder.parent.rmdir()
