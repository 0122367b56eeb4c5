"""Frames to files of an attempt, with a manifest at the end: only complete ones are ever looked at."""

import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq  # type: ignore[import-untyped]  # it has no types
from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F

from noetl.spark.commits import written_files
from noetl.spark.errors import Broken, Unmet

MANIFEST = "manifest.json"
COMPRESSION = {"compression": "zstd", "parquet.compression.codec.zstd.level": "1"}  # as quick as any, and small
HIDDEN = "__noetl_"  # columns that only name directories: the files keep their own
_PIECE = 1 << 20


def write(frame: DataFrame, folder: str, request: dict[str, Any]) -> dict[str, Any]:
    """Parquet, one set of files for every value of `partition_by`."""
    columns = frame.columns
    checked, counted = checked_rows(frame, request["expect"])
    names = request["output"].get("partition_by", [])
    for name in names:
        checked = checked.withColumn(f"{HIDDEN}{name}", F.col(name))
    writer = checked.write.options(**COMPRESSION)
    writer = writer.partitionBy(*(f"{HIDDEN}{name}" for name in names)) if names else writer
    writer.parquet(folder)
    files = _files(Path(folder))
    partitions = len({os.path.dirname(file["path"]) for file in files})
    made = {"columns": columns, "expect": counted(), "files": files, "partitions": partitions}
    keep_manifest(folder, made)
    return made


def keep_manifest(folder: str, made: dict[str, Any]) -> None:
    """Whole or not at all: whoever takes over finds what was finished."""
    part = Path(folder, f".{MANIFEST}")
    part.write_text(json.dumps(made))
    part.rename(Path(folder, MANIFEST))


def _files(folder: Path) -> list[dict[str, Any]]:
    """In the order of the rows; empty ones are left out, but for one that knows the columns."""
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as threads:
        found = list(threads.map(_file, written_files(folder)))
    return [file for file in found if file["rows"]] or found[:1]


def _file(path: Path) -> dict[str, Any]:
    found = sha256()
    with path.open("rb") as file:
        while data := file.read(_PIECE):
            found.update(data)
    rows = pq.read_metadata(path).num_rows
    return {"path": str(path), "rows": rows, "bytes": path.stat().st_size, "sha256": found.hexdigest()}


# ---- what is expected ----------------------------------------------------------------------------------------------------


def checked_rows(frame: DataFrame, expect: list[dict[str, Any]]) -> tuple[DataFrame, Callable[[], dict[str, int]]]:
    """The frame without the rows to drop, and, once it was written, how many rows failed each check. A row fails when the check
    is not true of it: one pass over the data counts and writes."""
    if not expect:
        return frame, dict
    given: dict[str, Any] = {}
    fails = {check["name"]: ~F.coalesce(F.expr(_with_columns(check, given)), F.lit(False)) for check in expect}
    for name, value in given.items():
        frame = frame.withColumn(name, F.lit(value))
    seen = Observation("expect")
    counts = [F.count_if(failing).alias(name) for name, failing in fails.items()]
    checked = frame.observe(seen, *counts)
    for check in expect:
        if check["on_fail"] == "drop":
            checked = checked.filter(~fails[check["name"]])
    checked = checked.drop(*given)

    def counted() -> dict[str, int]:
        found = {name: int(count) for name, count in seen.get.items()}
        for check in expect:
            if check["on_fail"] == "fail" and found[check["name"]]:
                raise Broken(
                    f"expect {check['name']}", Unmet(f"{found[check['name']]} rows do not meet {check['sql']!r}")
                )
        return found

    try:
        _ = checked.schema
    except Exception as error:
        raise Broken("expect", error) from error
    return checked, counted


def _with_columns(check: dict[str, Any], given: dict[str, Any]) -> str:
    """The check with a column in place of every parameter, which an expression cannot have; their values are added to `given`."""
    text: str = check["sql"]
    for name, value in reversed(check["values"].items()):  # :noetl_12 before :noetl_1
        column = f"{HIDDEN}{len(given)}"
        given[column] = value
        text = text.replace(f":{name} ", f"`{column}` ")
    return text
