"""Writes the rows of a step to a path of the user.

Files in a folder of this machine are committed as `commits.py` describes. For other stores (HDFS,
`s3a://`) and for tables with a log of their own, Spark's writer copies the rows, and it removes old
files before it writes. So the rows are first complete in a folder of the attempt. A failure while
they are computed changes nothing at the path, and a lost copy is repeated from that folder. A copy
that adds rows is never begun twice: if the extent of the first copy is unknown, the call fails and
says so.
"""

import os
import shutil
import time
from contextlib import ExitStack
from pathlib import Path

import grpc  # type: ignore[import-untyped]  # it has no types
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from noetl.spark.client.columns import (
    SPARSE_FORMATS,
    ExistingColumns,
    find_existing_columns,
    fit_columns,
    read_folder_columns,
)
from noetl.spark.client.frame_files import RowChecks, write_frame
from noetl.spark.commits import FILE_FORMATS, RECORD_KEPT_S, CommitTarget, make_skipped_answer
from noetl.spark.errors import ImpossibleRequest, LocatedError, OutputUncertain
from noetl.spark.messages import (
    FrameManifest,
    OutputSpec,
    RunRequest,
    decode_message,
    encode_message,
)
from noetl.spark.paths import find_local_folder

OVERWRITE_MODE = "spark.sql.sources.partitionOverwriteMode"
OVERWRITE_OPTION = "partitionoverwritemode"
WRITE_ERRORS = (PySparkException, grpc.RpcError)  # of Spark, and of the connection to it
REPEATABLE_MODES = (
    "overwrite",
    "overwrite_partitions",
)  # modes in which a second copy does no harm


def publish_frame(frame: DataFrame, request: RunRequest) -> FrameManifest:
    """Write the frame to the path of the output. Returns the answer of the step."""
    output = request.work.output
    mode = _choose_mode(frame, output)
    folder = find_local_folder(output.path)
    if folder is None or output.format not in FILE_FORMATS:
        return _copy_by_spark(frame, request, mode)
    target = CommitTarget(
        folder,
        request.key,
        mode,
        output.format,
        output.partition_by,
    )
    earlier_answer = target.find_recorded_answer()
    if earlier_answer is not None:
        return earlier_answer
    if mode == "ignore" and target.has_data():
        return make_skipped_answer(FrameManifest(frame.columns, {}, [], path=output.path))
    target.check_target()
    return _commit_frame(frame, request, target)


def _choose_mode(frame: DataFrame, output: OutputSpec) -> str:
    """The mode of the output. `overwrite` replaces only partitions if an option or a setting of
    Spark says so."""
    mode = output.mode or "overwrite"
    if mode != "overwrite" or not output.partition_by:
        return str(mode)
    options = {name.lower(): value for name, value in output.options.items()}
    spark_mode = options.get(OVERWRITE_OPTION) or frame.sparkSession.conf.get(OVERWRITE_MODE)
    return "overwrite_partitions" if str(spark_mode).lower() == "dynamic" else "overwrite"


def _commit_frame(frame: DataFrame, request: RunRequest, target: CommitTarget) -> FrameManifest:
    """Write the frame to a staging folder of the target, and commit its files."""
    output = request.work.output
    sample = target.find_sample_file()
    frame = _fit_to_sample(frame, sample, target, output)
    checks = RowChecks(request.work.expect)
    counts = Observation("written")
    row_count = F.count(F.lit(1)).alias("rows")
    checked = checks.apply_checks(frame).observe(counts, row_count)
    writer = checked.write.format(output.format)
    writer = writer.options(**output.options)
    staging = target.make_staging(request.session)
    with ExitStack() as cleanup:
        cleanup.callback(shutil.rmtree, staging, ignore_errors=True)
        writer.partitionBy(*target.partition_by).save(str(staging))
        reader = frame.sparkSession.read.schema(frame.schema)
        reader = reader.format(output.format).options(**output.options)
        failures = checks.count_failures(lambda: reader.load(str(staging)))
        answer = FrameManifest(
            frame.columns, failures, [], path=output.path, rows=int(counts.get["rows"])
        )
        cleanup.pop_all()  # the staged files are complete: keep them

    def check_columns() -> None:
        new_sample = target.find_sample_file()
        if new_sample != sample and _fit_to_sample(frame, new_sample, target, output) is not frame:
            raise _make_output_error(
                f"another step has written to {output.path} meanwhile; start this one again"
            )

    return target.commit(staging, answer, frame.schema.jsonValue(), check_columns)


def _fit_to_sample(
    frame: DataFrame,
    sample: Path | None,
    target: CommitTarget,
    output: OutputSpec,
) -> DataFrame:
    """The frame with the columns of the existing files; `sample` is one of them."""
    if sample is None:
        return frame
    recorded = target.read_recorded_schema()
    schema = None if recorded is None else StructType.fromJson(recorded)
    standing = find_existing_columns(frame.sparkSession, str(sample), output, schema)
    if standing is None:
        return frame
    return fit_columns(frame, standing, target.partition_by)


def _make_output_error(message: str) -> LocatedError:
    return LocatedError("output", ImpossibleRequest(message))


# ---- by Spark's own writer -------------------------------------------------------------------------------------------------


def _copy_by_spark(frame: DataFrame, request: RunRequest, mode: str) -> FrameManifest:
    """Stage the rows, and let Spark's writer copy them to the path."""
    copying = CopyRecord(Path(request.copy_record))
    output = request.work.output
    earlier_answer = copying.read_answer()
    if earlier_answer is not None:
        return earlier_answer
    if mode not in REPEATABLE_MODES and copying.path.exists():
        message = f"an earlier try was copying rows to {output.path} when it was lost"
        raise LocatedError("output", OutputUncertain(message))
    spark = frame.sparkSession
    if mode == "ignore" and _path_exists(spark, output.path):
        return make_skipped_answer(FrameManifest(frame.columns, {}, [], path=output.path))
    if mode == "error" and _path_exists(spark, output.path):
        raise _make_output_error(f"{output.path} is there already (mode: error)")
    standing = _find_remote_columns(spark, output, mode)
    partition_by = output.partition_by
    staged = request.work.staged
    if staged is None:
        if standing is not None:
            frame = fit_columns(frame, standing, partition_by)
        staged = _stage_frame(frame, request)
    paths = [file.path for file in staged.files]
    rows = spark.read.parquet(*paths)
    if standing is not None:
        rows = fit_columns(rows, standing, partition_by)
    row_count = sum(file.rows for file in staged.files)
    answer = FrameManifest(staged.columns, staged.expect, [], path=output.path, rows=row_count)
    copying.begin_copy()
    try:
        _copy_to_path(rows, output, mode)
    except WRITE_ERRORS as error:
        if mode in REPEATABLE_MODES:
            raise LocatedError("output", error) from error
        raise LocatedError("output", OutputUncertain(str(error))) from error
    copying.end_copy(answer)
    staged_file = staged.files[0].path
    shutil.rmtree(os.path.dirname(staged_file), ignore_errors=True)
    return answer


def _stage_frame(frame: DataFrame, request: RunRequest) -> FrameManifest:
    """Write the frame to the folder of the attempt. Returns its manifest."""
    folder = os.path.join(request.folder, "result")
    return write_frame(frame, folder, request.work.expect)


def _find_remote_columns(
    spark: SparkSession, output: OutputSpec, mode: str
) -> ExistingColumns | None:
    """The existing columns at the path, if rows are added to them.

    None for tables with a log, which compare the columns themselves.
    """
    format, path = output.format, output.path
    if (
        mode not in ("append", "overwrite_partitions")
        or format not in FILE_FORMATS - SPARSE_FORMATS
    ):
        return None
    standing = find_existing_columns(spark, path, output)
    if standing is None:
        return None
    in_files = {name.lower() for name in standing.schema.names}
    columns = read_folder_columns(spark, path, format, output.options)
    all_names = {name.lower() for name in columns}
    found = all_names - in_files
    wanted = {name.lower() for name in output.partition_by}
    if standing.has_names and found != wanted:
        there = ", ".join(sorted(found)) or "nothing"
        here = ", ".join(sorted(wanted)) or "nothing"
        raise _make_output_error(
            f"{path} is partitioned by {there}, and this step writes partition_by {here}"
        )
    return standing


def _copy_to_path(rows: DataFrame, output: OutputSpec, mode: str) -> None:
    given = output.options.items()
    options = {name: value for name, value in given if name.lower() != OVERWRITE_OPTION}
    options["partitionOverwriteMode"] = "dynamic" if mode == "overwrite_partitions" else "static"
    writer = rows.write.format(output.format).options(**options)
    writer = writer.partitionBy(*output.partition_by)
    spark_mode = "overwrite" if mode in REPEATABLE_MODES else "append"
    writer.mode(spark_mode).save(output.path)


def _path_exists(spark: SparkSession, path: str) -> bool:
    try:
        _ = spark.read.format("binaryFile").load(path).schema
    except PySparkException as error:
        if error.getCondition() == "PATH_NOT_FOUND":
            return False
        raise
    return True


class CopyRecord:
    """The file that records whether a call has begun to copy its rows, and its answer at the end."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read_answer(self) -> FrameManifest | None:
        """The answer of the call, or None if it has not copied all rows."""
        try:
            text = self.path.read_bytes()
        except FileNotFoundError:
            return None
        if not text:
            return None
        return decode_message(text, FrameManifest)

    def begin_copy(self) -> None:
        """Record that the copy begins, and delete old records of other calls."""
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path.touch()
        oldest = time.time() - RECORD_KEPT_S
        for record in self.path.parent.iterdir():
            if record.stat().st_mtime < oldest:
                record.unlink(missing_ok=True)

    def end_copy(self, answer: FrameManifest) -> None:
        part = self.path.with_suffix(".part")
        part.write_bytes(encode_message(answer))
        os.replace(part, self.path)
