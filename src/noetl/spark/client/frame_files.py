"""Writes frames to Parquet files of an attempt. The manifest comes last, so a set of files is
complete if it has one."""

import json
import os
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F

from noetl.spark.commits import list_written_files
from noetl.spark.errors import CheckFailed, LocatedError
from noetl.spark.messages import CheckSpec, FileFacts, FrameManifest, encode_message

MANIFEST = "manifest.json"
# As fast as any other codec, and small.
COMPRESSION = {"compression": "zstd", "parquet.compression.codec.zstd.level": "1"}
# Prefix of copied columns for directory names: the files keep the originals.
HIDDEN_PREFIX = "__noetl_"
_READ_BYTES = 1 << 20
MAX_SAMPLE_ROWS = 20
MAX_SAMPLE_CHARS = 1_000  # characters of a value


def write_frame(
    frame: DataFrame, folder: str, expect: list[CheckSpec], partition_by: Sequence[str] = ()
) -> FrameManifest:
    """Write a frame as Parquet, with separate files for every value of `partition_by`.

    Returns the manifest.
    """
    columns = frame.columns
    checks = RowChecks(expect)
    checked = checks.apply_checks(frame)
    for name in partition_by:
        checked = checked.withColumn(f"{HIDDEN_PREFIX}{name}", F.col(name))
    writer = checked.write.options(**COMPRESSION)
    if partition_by:
        writer = writer.partitionBy(*(f"{HIDDEN_PREFIX}{name}" for name in partition_by))
    writer.parquet(folder)
    files = _describe_files(Path(folder))
    partitions = len({os.path.dirname(file.path) for file in files})
    reader = frame.sparkSession.read.schema(frame.schema)
    paths = [file.path for file in files]
    counts = checks.count_failures(lambda: reader.parquet(*paths))
    manifest = FrameManifest(columns, counts, files, partitions)
    write_manifest(folder, manifest)
    return manifest


def write_manifest(folder: str, manifest: FrameManifest) -> None:
    """Write the manifest atomically: a later lease finds the complete result by it."""
    part = Path(folder, f".{MANIFEST}")
    part.write_bytes(encode_message(manifest))
    part.rename(Path(folder, MANIFEST))


def _describe_files(folder: Path) -> list[FileFacts]:
    """The files in the order of the rows. Empty files are left out, but one is kept for its columns
    if all are empty."""
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as threads:
        found = list(threads.map(_describe_frame_file, list_written_files(folder)))
    return [file for file in found if file.rows] or found[:1]


def _describe_frame_file(path: Path) -> FileFacts:
    digest = sha256()
    with path.open("rb") as file:
        while data := file.read(_READ_BYTES):
            digest.update(data)
    rows = pq.read_metadata(path).num_rows
    return FileFacts(str(path), path.stat().st_size, rows, digest.hexdigest())


# ---- checks --------------------------------------------------------------------------------------------------------------


class RowChecks:
    """The checks that a step expects its rows to meet.

    A row fails a check that is false or null for it. One pass over the data counts the failures and
    writes the rows.
    """

    def __init__(self, expect: list[CheckSpec]) -> None:
        self._expect = expect
        self._values: dict[str, Any] = {}
        self._failure_conditions = {}
        for check in expect:
            condition = F.expr(_replace_parameters(check, self._values))
            self._failure_conditions[check.name] = ~F.coalesce(condition, F.lit(False))
        self._observation = Observation("expect")

    def apply_checks(self, frame: DataFrame) -> DataFrame:
        """The frame with the counts of failures observed, without the rows to drop."""
        if not self._expect:
            return frame
        counts = [
            F.count_if(failing).alias(name) for name, failing in self._failure_conditions.items()
        ]
        checked = self._add_values(frame).observe(self._observation, *counts)
        for check in self._expect:
            if check.on_fail == "drop":
                checked = checked.filter(~self._failure_conditions[check.name])
        checked = checked.drop(*self._values)
        try:
            _ = checked.schema
        except Exception as error:
            raise LocatedError("expect", error) from error
        return checked

    def count_failures(self, written: Callable[[], DataFrame]) -> dict[str, int]:
        """How many rows failed each check, after the rows were written.

        `written` reads the rows again: a failure has a sample of them.
        """
        if not self._expect:
            return {}
        counts = {name: int(count) for name, count in self._observation.get.items()}
        for check in self._expect:
            name = check.name
            if check.on_fail == "fail" and counts[name]:
                message = f"{counts[name]} rows do not meet {check.sql!r}"
                unmet = CheckFailed(message, self._collect_sample(name, written()))
                raise LocatedError(f"expect {name}", unmet)
        return counts

    def _collect_sample(self, name: str, written: DataFrame) -> list[dict[str, Any]]:
        """A few rows that fail a check, with long values cut."""
        failing = self._add_values(written).filter(self._failure_conditions[name])
        some = failing.drop(*self._values).limit(MAX_SAMPLE_ROWS)
        text = F.to_json(F.struct("*"), {"ignoreNullFields": "false"})
        sample = []
        for row in some.select(text.alias("row")).collect():
            values = json.loads(row["row"])
            sample.append({column: _cut_sample_value(value) for column, value in values.items()})
        return sample

    def _add_values(self, frame: DataFrame) -> DataFrame:
        """The frame with a column for every value that a check uses."""
        for name, value in self._values.items():
            frame = frame.withColumn(name, F.lit(value))
        return frame


def _cut_sample_value(value: Any) -> Any:
    if isinstance(value, str) and len(value) > MAX_SAMPLE_CHARS:
        return f"{value[:MAX_SAMPLE_CHARS]}…"
    return value


def _replace_parameters(check: CheckSpec, given: dict[str, Any]) -> str:
    """The check with a column in place of every parameter, because a Spark expression cannot have
    parameters. The values are added to `given`."""
    text = check.sql
    for name, value in check.values.items():
        column = f"{HIDDEN_PREFIX}{len(given)}"
        given[column] = value
        text = re.sub(rf":{name}\b", f"`{column}`", text)
    return text
