"""Frames to files of an attempt, with a manifest at the end: only complete ones are ever looked at."""

import json
import os
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F

from noetl.spark.commits import written_files
from noetl.spark.errors import Broken, Unmet

MANIFEST = "manifest.json"
COMPRESSION = {
    "compression": "zstd",
    "parquet.compression.codec.zstd.level": "1",
}  # as quick as any, and small
HIDDEN = "__noetl_"  # columns that only name directories: the files keep their own
_PIECE = 1 << 20
MAX_SAMPLE_ROWS = 20
MAX_SAMPLE_TEXT = 1_000  # characters of a value


def write(frame: DataFrame, folder: str, request: dict[str, Any]) -> dict[str, Any]:
    """Parquet, one set of files for every value of `partition_by`."""
    columns = frame.columns
    checks = Checks(request["expect"])
    checked = checks.applied(frame)
    names = request["output"].get("partition_by", [])
    for name in names:
        checked = checked.withColumn(f"{HIDDEN}{name}", F.col(name))
    writer = checked.write.options(**COMPRESSION)
    writer = writer.partitionBy(*(f"{HIDDEN}{name}" for name in names)) if names else writer
    writer.parquet(folder)
    files = _files(Path(folder))
    partitions = len({os.path.dirname(file["path"]) for file in files})
    reader = frame.sparkSession.read.schema(frame.schema)
    counts = checks.counted(lambda: reader.parquet(*(file["path"] for file in files)))
    made = {"columns": columns, "expect": counts, "files": files, "partitions": partitions}
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
    return {
        "path": str(path),
        "rows": rows,
        "bytes": path.stat().st_size,
        "sha256": found.hexdigest(),
    }


# ---- what is expected ----------------------------------------------------------------------------------------------------


class Checks:
    """What a step expects of its rows. A row fails a check that is not true of it: one pass over the data counts and writes."""

    def __init__(self, expect: list[dict[str, Any]]) -> None:
        self._expect = expect
        self._given: dict[str, Any] = {}
        self._fails = {
            check["name"]: ~F.coalesce(F.expr(_with_columns(check, self._given)), F.lit(False))
            for check in expect
        }
        self._seen = Observation("expect")

    def applied(self, frame: DataFrame) -> DataFrame:
        """The frame without the rows to drop."""
        if not self._expect:
            return frame
        counts = [F.count_if(failing).alias(name) for name, failing in self._fails.items()]
        checked = self._with_given(frame).observe(self._seen, *counts)
        for check in self._expect:
            if check["on_fail"] == "drop":
                checked = checked.filter(~self._fails[check["name"]])
        checked = checked.drop(*self._given)
        try:
            _ = checked.schema
        except Exception as error:
            raise Broken("expect", error) from error
        return checked

    def counted(self, written: Callable[[], DataFrame]) -> dict[str, int]:
        """How many rows failed each check, once they were written. `written` reads them again: some go with the failure."""
        if not self._expect:
            return {}
        found = {name: int(count) for name, count in self._seen.get.items()}
        for check in self._expect:
            name = check["name"]
            if check["on_fail"] == "fail" and found[name]:
                unmet = Unmet(
                    f"{found[name]} rows do not meet {check['sql']!r}",
                    self._sample(name, written()),
                )
                raise Broken(f"expect {name}", unmet)
        return found

    def _sample(self, name: str, written: DataFrame) -> list[dict[str, Any]]:
        failing = (
            self._with_given(written)
            .filter(self._fails[name])
            .drop(*self._given)
            .limit(MAX_SAMPLE_ROWS)
        )
        texts = failing.select(
            F.to_json(F.struct("*"), {"ignoreNullFields": "false"}).alias("row")
        ).collect()
        return [
            {column: _cut(value) for column, value in json.loads(row["row"]).items()}
            for row in texts
        ]

    def _with_given(self, frame: DataFrame) -> DataFrame:
        for name, value in self._given.items():
            frame = frame.withColumn(name, F.lit(value))
        return frame


def _cut(value: Any) -> Any:
    is_long = isinstance(value, str) and len(value) > MAX_SAMPLE_TEXT
    return f"{value[:MAX_SAMPLE_TEXT]}…" if is_long else value


def _with_columns(check: dict[str, Any], given: dict[str, Any]) -> str:
    """The check with a column in place of every parameter, which an expression cannot have; their values are added to `given`."""
    text: str = check["sql"]
    for name, value in check["values"].items():
        column = f"{HIDDEN}{len(given)}"
        given[column] = value
        text = re.sub(rf":{name}\b", f"`{column}`", text)
    return text
