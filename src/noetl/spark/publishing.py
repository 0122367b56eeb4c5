"""Rows of a step to a path of the user's.

A folder of files on a file system of this machine is committed as `commits.py` says. Elsewhere (HDFS, `s3a://`) and for tables
with a log of their own, Spark's writer does it, which removes before it writes. So the rows are complete in a folder of the
attempt before it begins: what fails or is interrupted while they are computed changes nothing, and what is lost while they are
copied is copied again from there. A copy that adds rows is never begun twice: if it is not known how far the first one came,
the call fails and says so.
"""

import json
import os
import shutil
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]  # it has no types
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from noetl.spark.columns import SPARSE, Standing, fit, folder_columns, standing_at
from noetl.spark.commits import FILE_FORMATS, RECORD_KEPT_S, CommitTarget, skipped
from noetl.spark.errors import Broken, Uncertain, Wrong
from noetl.spark.paths import local_folder
from noetl.spark.writing import Checks, write

OVERWRITE_MODE = "spark.sql.sources.partitionOverwriteMode"
OVERWRITE_OPTION = "partitionoverwritemode"
WRITE_ERRORS = (PySparkException, grpc.RpcError)  # of Spark, and of the connection to it
REPEATABLE = ("overwrite", "overwrite_partitions")  # a second copy leaves what one leaves


def publish(frame: DataFrame, request: dict[str, Any]) -> dict[str, Any]:
    output = request["output"]
    mode = _mode(frame, output)
    folder = local_folder(output["path"])
    if folder is None or output["format"] not in FILE_FORMATS:
        return _copy_by_spark(frame, request, mode)
    target = CommitTarget(
        folder, request["key"], mode, output["format"], output.get("partition_by") or ()
    )
    if (answer := target.recorded()) is not None:
        return answer
    if mode == "ignore" and target.has_data():
        return skipped({"columns": frame.columns, "path": output["path"], "expect": {}})
    target.check()
    return _commit(frame, request, target)


def _mode(frame: DataFrame, output: dict[str, Any]) -> str:
    """As the output says it. `overwrite` is that of partitions where Spark is told so, by an option or by a setting."""
    mode = output.get("mode") or "overwrite"
    if mode != "overwrite" or not output.get("partition_by"):
        return str(mode)
    options = {name.lower(): value for name, value in output["options"].items()}
    said = options.get(OVERWRITE_OPTION) or frame.sparkSession.conf.get(OVERWRITE_MODE)
    return "overwrite_partitions" if str(said).lower() == "dynamic" else "overwrite"


def _commit(frame: DataFrame, request: dict[str, Any], target: CommitTarget) -> dict[str, Any]:
    output = request["output"]
    sample = target.sample_file()
    frame = _fitted(frame, sample, target, output)
    answer: dict[str, Any] = {"columns": frame.columns, "path": output["path"], "expect": {}}
    checks = Checks(request["expect"])
    counted = Observation("written")
    writer = (
        checks.applied(frame)
        .observe(counted, F.count(F.lit(1)).alias("rows"))
        .write.format(output["format"])
    )
    staging = target.staging(request["session"])
    with ExitStack() as cleanup:
        cleanup.callback(shutil.rmtree, staging, ignore_errors=True)
        writer.options(**output["options"]).partitionBy(*target.partition_by).save(str(staging))
        reader = (
            frame.sparkSession.read.schema(frame.schema)
            .format(output["format"])
            .options(**output["options"])
        )
        answer["expect"] = checks.counted(lambda: reader.load(str(staging)))
        answer["rows"] = int(counted.get["rows"])
        cleanup.pop_all()  # it is complete

    def check_columns() -> None:
        now = target.sample_file()
        if now != sample and _fitted(frame, now, target, output) is not frame:
            raise Broken(
                "output",
                Wrong(
                    f"another step has written to {output['path']} meanwhile; start this one again"
                ),
            )

    return target.commit(staging, answer, frame.schema.jsonValue(), check_columns)


def _fitted(
    frame: DataFrame, sample: Path | None, target: CommitTarget, output: dict[str, Any]
) -> DataFrame:
    """With the columns that are there, of which `sample` is a file."""
    if sample is None:
        return frame
    recorded = target.recorded_schema()
    schema = None if recorded is None else StructType.fromJson(recorded)
    standing = standing_at(frame.sparkSession, str(sample), output, schema)
    return frame if standing is None else fit(frame, standing, target.partition_by)


# ---- by Spark's own writer -------------------------------------------------------------------------------------------------


def _copy_by_spark(frame: DataFrame, request: dict[str, Any], mode: str) -> dict[str, Any]:
    copying = Copying(Path(request["copying"]))
    output = request["output"]
    if (answer := copying.answer()) is not None:
        return answer
    if mode not in REPEATABLE and copying.path.exists():
        raise Broken(
            "output",
            Uncertain(f"an earlier try was copying rows to {output['path']} when it was lost"),
        )
    spark = frame.sparkSession
    if mode == "ignore" and _exists(spark, output["path"]):
        return skipped({"columns": frame.columns, "path": output["path"], "expect": {}})
    if mode == "error" and _exists(spark, output["path"]):
        raise Broken("output", Wrong(f"{output['path']} is there already (mode: error)"))
    standing = _standing_elsewhere(spark, output, mode)
    made = request.get("staged")
    if made is None:
        made = _staged(
            frame if standing is None else fit(frame, standing, output.get("partition_by") or ()),
            request,
        )
    rows = spark.read.parquet(*(file["path"] for file in made["files"]))
    if standing is not None:
        rows = fit(rows, standing, output.get("partition_by") or ())
    answer = {
        "columns": made["columns"],
        "path": output["path"],
        "expect": made["expect"],
        "files": [],
        "rows": sum(file["rows"] for file in made["files"]),
    }
    copying.begin()
    try:
        _copied(rows, output, mode)
    except WRITE_ERRORS as error:
        raise Broken("output", error if mode in REPEATABLE else Uncertain(str(error))) from error
    copying.end(answer)
    shutil.rmtree(os.path.dirname(made["files"][0]["path"]), ignore_errors=True)
    return answer


def _staged(frame: DataFrame, request: dict[str, Any]) -> dict[str, Any]:
    return write(frame, os.path.join(request["folder"], "result"), {**request, "output": {}})


def _standing_elsewhere(spark: SparkSession, output: dict[str, Any], mode: str) -> Standing | None:
    """What rows are added to. Tables with a log compare the columns themselves."""
    format, path = output["format"], output["path"]
    if mode not in ("append", "overwrite_partitions") or format not in FILE_FORMATS - SPARSE:
        return None
    standing = standing_at(spark, path, output)
    if standing is None:
        return None
    files = {name.lower() for name in standing.schema.names}
    everything = {name.lower() for name in folder_columns(spark, path, format, output["options"])}
    found = everything - files if standing.has_names else set()
    wanted = {name.lower() for name in output.get("partition_by") or ()}
    if standing.has_names and found != wanted:
        there, here = (", ".join(sorted(names)) or "nothing" for names in (found, wanted))
        raise Broken(
            "output",
            Wrong(f"{path} is partitioned by {there}, and this step writes partition_by {here}"),
        )
    return standing


def _copied(rows: DataFrame, output: dict[str, Any], mode: str) -> None:
    options = {
        name: value for name, value in output["options"].items() if name.lower() != OVERWRITE_OPTION
    }
    options["partitionOverwriteMode"] = "dynamic" if mode == "overwrite_partitions" else "static"
    writer = (
        rows.write.format(output["format"])
        .options(**options)
        .partitionBy(*output.get("partition_by", ()))
    )
    spark_mode = "overwrite" if mode in REPEATABLE else "append"
    writer.mode(spark_mode).save(output["path"])


def _exists(spark: SparkSession, path: str) -> bool:
    try:
        _ = spark.read.format("binaryFile").load(path).schema
    except PySparkException as error:
        if error.getCondition() == "PATH_NOT_FOUND":
            return False
        raise
    return True


class Copying:
    """A file that says whether a call has begun to copy its rows, and what it answered when it had done so."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def answer(self) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] | None = json.loads(self.path.read_bytes() or b"null")
        except FileNotFoundError:
            return None
        return found

    def begin(self) -> None:
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path.touch()
        oldest = time.time() - RECORD_KEPT_S
        for each in self.path.parent.iterdir():
            if each.stat().st_mtime < oldest:
                each.unlink(missing_ok=True)

    def end(self, answer: dict[str, Any]) -> None:
        part = self.path.with_suffix(".part")
        part.write_text(json.dumps(answer))
        os.replace(part, self.path)
