"""The client process of the spark tool: it runs one command and ends.

The process is forked from one that has loaded PySpark already. The request comes by a socket as
one JSON text, preceded by its length. Lines of JSON go back (`messages.ClientLine`).

Spark writes rows to files; the answer lists their names, sizes, row counts and hashes. The only
rows in an answer are a few that failed a check. What the code prints goes to stdout and stderr.
"""

import json
import logging
import os
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, cast

import grpc  # type: ignore[import-untyped]  # it has no types
import pyarrow as pa
from msgspec.structs import replace
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.connect.client.retries import DefaultPolicy
from pyspark.sql.connect.readwriter import DataFrameReader
from pyspark.sql.connect.session import SparkSession
from pyspark.sql.connect.shell.progress import ProgressHandler
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    CalendarIntervalType,
    DataType,
    DayTimeIntervalType,
    MapType,
    StructType,
    VariantType,
    YearMonthIntervalType,
)

from noetl.spark.arrow import convert_schema
from noetl.spark.client.decimals import make_decimal_column
from noetl.spark.client.failures import (
    INTERRUPTED,
    MALFORMED_RECORD,
    find_sample,
    is_unknown_session,
    make_spark_failure,
)
from noetl.spark.client.frame_files import write_frame, write_manifest
from noetl.spark.client.progress import ProgressMetrics
from noetl.spark.client.publishing import publish_frame
from noetl.spark.commits import finish_pending_commits
from noetl.spark.errors import ImpossibleRequest, LocatedError, ResultNotJson, ValueTooLarge
from noetl.spark.messages import (
    ClientLine,
    ConnectServer,
    FrameManifest,
    InputSpec,
    LoopWork,
    ReleaseRequest,
    RunRequest,
    ShardReport,
    SparkAnswer,
    SparkStatement,
    SparkWork,
    decode_message,
    decode_request,
    encode_message,
)
from noetl.spark.paths import find_local_folder
from noetl.spark.tasks import entry
from noetl.tools.python import child as python_child

SOCKET_FD = 3
USER = NOETL = "noetl"
QUICK_RETRIES = DefaultPolicy(max_retries=6, backoff_multiplier=2.0, max_backoff=500)
# Retries for half a minute.
PATIENT_RETRIES = DefaultPolicy(max_retries=11, backoff_multiplier=2.0, max_backoff=5_000)
# Session settings for servers of others; our own servers start with them. Timestamps are instants
# and do not depend on the time zone of the server's machine.
REMOTE_SESSION_CONF = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.session.timeZone": "UTC",
}
_INTERVAL_TYPES = (CalendarIntervalType, DayTimeIntervalType, YearMonthIntervalType)
SHARED_CLASSES_CONF = {  # Spark reads these settings when it makes a session
    "spark.sql.artifact.isolation.enabled": "false",
    "spark.sql.artifact.isolation.alwaysApplyClassloader": "false",
}


def serve(_memory: int, _limits: dict[str, int | None], _other_threads: int) -> None:
    """Run one request and send its answer.

    The session is stopped after the answer is sent, so that the worker need not wait for it.
    """
    logging.disable(logging.CRITICAL)  # PySpark also logs the errors that it raises
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # they are files
    data = _read_request()
    spark: SparkSession | None = None
    try:
        request = decode_request(data)
        if isinstance(request, ReleaseRequest):
            answer = release_sessions(request)
        else:
            spark = begin_session(request)
            answer = run_request(spark, request)
    except BaseException as error:  # every error becomes the answer
        answer = SparkAnswer(error=make_spark_failure(error), sample=find_sample(error))
    _silence_output()
    _send_line(ClientLine(answer=answer))
    if spark is not None:
        spark.stop()


def _silence_output() -> None:
    """Flush what was printed, so that it precedes the answer, and discard all later output."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    for stream, descriptor in ((sys.stdout, 1), (sys.stderr, 2)):
        stream.flush()
        os.dup2(devnull, descriptor)


def _read_request() -> bytes:
    size = int.from_bytes(os.read(SOCKET_FD, 4), "big")
    parts = []
    while size > 0:
        data = os.read(SOCKET_FD, size)
        if not data:
            break
        parts.append(data)
        size -= len(data)
    return b"".join(parts)


def _send_line(line: ClientLine) -> None:
    data = encode_message(line) + b"\n"
    while data:
        data = data[os.write(SOCKET_FD, data) :]


def open_session(server: ConnectServer, session: str) -> SparkSession:
    """Open the session with this id on the server."""
    url = server.url
    if url.endswith(";"):
        separator = ""
    elif "/;" in url:
        separator = ";"
    else:
        separator = "/;"
    address = f"{url}{separator}session_id={session};user_id={USER}"
    spark = SparkSession.builder.remote(address).create()
    return _set_retries(spark, server)


def _set_retries(spark: SparkSession, server: ConnectServer) -> SparkSession:
    """Set how long the client retries.

    No network is between this process and our own server: if that does not answer, it is gone.
    """
    policy = QUICK_RETRIES if server.ours else PATIENT_RETRIES
    spark.client.set_retry_policies([policy])
    return spark


def begin_session(request: RunRequest) -> SparkSession:
    """Open the session of a command: a new one, or a copy of the session `base`.

    Spark caches the code that it generates for a query by class loader. Copies of `base` share the
    class loader of the server, so Spark generates the code once and not for every session.
    """
    server, session = request.server, request.session
    if request.base is None:
        return open_session(server, session)
    base = open_session(server, request.base)
    try:
        return _set_retries(base.cloneSession(session), server)
    except grpc.RpcError as error:
        if error.code() is grpc.StatusCode.UNIMPLEMENTED:  # an older server
            return open_session(server, session)
        if not is_unknown_session(error):
            raise
    # The server does not know `base` yet: setting these makes it.
    for name, value in SHARED_CLASSES_CONF.items():
        base.conf.set(name, value)
    return _set_retries(base.cloneSession(session), server)


def release_sessions(request: ReleaseRequest) -> SparkAnswer:
    """End these sessions. Spark interrupts their operations and accepts no new ones for them."""
    for session in request.sessions:
        try:
            # A variable: a collected session closes its client.
            spark = open_session(request.server, session)
            spark.client.release_session()
        except Exception as error:  # a session that is closed already is fine
            if make_spark_failure(error).code != INTERRUPTED:
                raise
    return SparkAnswer()


# ---- one command ---------------------------------------------------------------------------------------------------------


def run_request(spark: SparkSession, request: RunRequest) -> SparkAnswer:
    """Run the command of a request in its session."""
    work = request.work
    metrics = ProgressMetrics(lambda line: _send_line(ClientLine(line)))
    for tag in request.tags:
        spark.addTag(tag)
    _configure_session(spark, request)
    spark.registerProgressHandler(cast(ProgressHandler, metrics))  # any function will do
    if work.loop is not None:
        manifest = _run_loop_shards(spark, request, work.loop)
        return _make_frame_answer(manifest, metrics)
    if _needs_data_source(work):
        _register_data_source(spark, work.ticket)
    if work.staged is not None:  # an earlier lease had computed the rows
        rows = spark.createDataFrame([], "nothing int")
        return _make_frame_answer(publish_frame(rows, request), metrics)
    frames = {name: _make_view(spark, name, spec) for name, spec in work.inputs.items()}
    if work.sql is not None:
        result = _run_sql(spark, work.sql)
    else:
        result = _run_code(spark, work, frames)
    return replace(_make_answer(result, request), metrics=metrics.make_sums())


def _make_frame_answer(manifest: FrameManifest, metrics: ProgressMetrics) -> SparkAnswer:
    return SparkAnswer(frames={"": manifest}, single=True, metrics=metrics.make_sums())


def _configure_session(spark: SparkSession, request: RunRequest) -> None:
    conf = request.work.conf
    if not request.server.ours:
        conf = REMOTE_SESSION_CONF | conf
    for name, value in conf.items():
        spark.conf.set(name, value)


def _needs_data_source(work: SparkWork) -> bool:
    """Whether an input uses the data source `noetl`, or the code mentions it."""
    if any(spec.format == NOETL for spec in work.inputs.values()):
        return True
    return NOETL in (work.code or "")


def _register_data_source(spark: SparkSession, ticket: str) -> None:
    """Register the data source `noetl` in this session."""
    from noetl.spark.tasks.data_source import (
        make_source_class,  # only commands that read by it load it
    )

    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(make_source_class(ticket))


def _make_view(spark: SparkSession, name: str, spec: InputSpec) -> DataFrame:
    """Load an input as a frame, and make a view of its name."""
    try:
        frame = _load_input(spark, spec)
        for column in spec.decimals:
            frame = frame.withColumn(column, make_decimal_column(name, column))
        if spec.columns:
            frame = frame.select(*spec.columns)
        if parts := spec.partition:
            frame = frame.repartitionByRange(int(parts["count"]), parts["column"])
        frame.createOrReplaceTempView(name)
    except PySparkException as error:
        if MALFORMED_RECORD in str(error):
            raise LocatedError(
                f"input {name}", _find_error_with_file(spark, spec, error)
            ) from error
        raise LocatedError(f"input {name}", error) from error
    except Exception as error:
        raise LocatedError(f"input {name}", error) from error
    return frame


def _load_input(spark: SparkSession, spec: InputSpec) -> DataFrame:
    if spec.table is not None:
        return spark.table(spec.table)
    reader = _make_reader(spark, spec)
    if spec.schema is not None:
        reader = reader.schema(_read_input_schema(spec.schema, spec.columns))
    paths = spec.paths
    for folder in filter(None, map(find_local_folder, paths)):
        finish_pending_commits(folder)
    return reader.load(paths if len(paths) > 1 else paths[0])


def _make_reader(spark: SparkSession, spec: InputSpec) -> DataFrameReader:
    assert spec.format is not None, "an input that is no table has a format"
    return spark.read.format(spec.format).options(**spec.options)


def _find_error_with_file(
    spark: SparkSession, spec: InputSpec, error: PySparkException
) -> PySparkException:
    """The error for a broken record, with the name of its file.

    While Spark infers columns, its error does not name the file. Reading the rows names it.
    """
    reader = _make_reader(spark, spec).schema("nothing string")
    try:
        reader.load(spec.paths).count()
    except PySparkException as error_with_file:
        return error_with_file
    return error


def _read_input_schema(digits: str, columns: list[str]) -> StructType:
    """The schema of the selected columns. Spark reads no others."""
    serialized = bytes.fromhex(digits)
    schema = convert_schema(pa.ipc.read_schema(pa.BufferReader(serialized)))
    names = columns or schema.names
    return from_arrow_schema(pa.schema([schema.field(name) for name in names]))


def _run_sql(spark: SparkSession, statements: list[SparkStatement]) -> Any:
    """Run the statements in order. Returns the frame of the last one."""
    frame: Any = None
    for number, statement in enumerate(statements, start=1):
        try:
            frame = spark.sql(statement.text, args=statement.values or None)
            _ = frame.schema  # analyses the statement now, so that an error names it
        except Exception as error:
            where = f"statement {number}" if len(statements) > 1 else "sql"
            raise LocatedError(where, error) from error
    return frame


def _run_code(spark: SparkSession, work: SparkWork, frames: Mapping[str, DataFrame]) -> Any:
    arguments = {**work.given, **frames, "spark": spark}
    return python_child.execute_program(python_child.compile_program(work.code or ""), arguments)


def _run_loop_shards(spark: SparkSession, request: RunRequest, loop: LoopWork) -> FrameManifest:
    """Run a loop, one task per shard. Only the reports of the shards come back."""
    folder = os.path.join(request.folder, "result")
    os.makedirs(folder, exist_ok=True)
    loop = replace(loop, folder=folder)
    numbers = spark.range(0, loop.shards, 1, loop.shards)
    shards = numbers.mapInArrow(partial(entry.run_task, loop), entry.REPORT_COLUMNS)
    rows = sorted(shards.collect(), key=lambda row: int(row["shard"]))
    reports = [decode_message(row["told"], ShardReport) for row in rows]
    manifest = FrameManifest(
        columns=entry.choose_row_schema(loop).names,
        expect={},
        files=[report.file for report in reports],
        partitions=len(reports),
        shards=[report.items for report in reports],
        provenance=[report.provenance for report in reports],
    )
    write_manifest(folder, manifest)
    return manifest


# ---- results -------------------------------------------------------------------------------------------------------------


def _refuse_equal_keys(result: Any) -> None:
    try:
        python_child.refuse_equal_keys(result)
    except ValueError as error:
        raise ResultNotJson(str(error)) from error


def _make_answer(result: Any, request: RunRequest) -> SparkAnswer:
    """The answer for the result of a command: its frames are written to files."""
    if isinstance(result, DataFrame):
        return SparkAnswer(frames={"": _store_frame(result, "", request)}, single=True)
    _refuse_frame_options(result, request.work)
    _refuse_equal_keys(result)
    if isinstance(result, dict):
        frames = {
            name: _store_frame(part, name, request)
            for name, part in result.items()
            if isinstance(part, DataFrame)
        }
        if frames:
            values = {name: part for name, part in result.items() if name not in frames}
            return SparkAnswer(frames=frames, value=values)
    return SparkAnswer(value=_to_json_value(result, request.max_value_bytes))


def _refuse_frame_options(result: Any, work: SparkWork) -> None:
    """`expect` and `output.path` need a step that gives one DataFrame."""
    options = {"expect": work.expect, "output.path": work.output.path}
    for name, option in options.items():
        if option:
            message = f"it is for a step that gives one DataFrame, not {_describe_result(result)}"
            raise LocatedError(name, ImpossibleRequest(message))


def _to_json_value(result: Any, limit: int) -> Any:
    """The result as plain JSON data. `limit` bounds its bytes."""
    try:
        text = python_child.STRICT_ENCODER.encode(result)
    except (TypeError, ValueError, RecursionError) as error:  # the code's mistake
        raise ResultNotJson(python_child.explain_not_json(result, error)) from error
    if len(text) > limit:
        raise ValueTooLarge(f"the value is larger than {limit >> 20} MB; give it as a DataFrame")
    return json.loads(text)


def _describe_result(result: Any) -> str:
    if isinstance(result, dict):
        return "a map"
    if result is None:
        return "nothing"
    return f"a value of type {type(result).__name__}"


def _store_frame(frame: DataFrame, name: str, request: RunRequest) -> FrameManifest:
    """Write a frame to the path that the step names, or to the folder of the command."""
    output = request.work.output
    if not frame.columns:
        return FrameManifest(columns=[], expect={}, files=[])
    if output.path:
        return publish_frame(frame, request)
    _refuse_unstorable_types(frame.schema)
    # The options of a database table do not apply to its intermediate files.
    partition_by = [] if output.kind else output.partition_by
    folder = os.path.join(request.folder, name or "result")
    return write_frame(frame, folder, request.work.expect, partition_by)


def _refuse_unstorable_types(schema: StructType) -> None:
    """Refuse types that Parquet does not keep: a reader would get another type."""
    for column in schema.fields:
        parts = list(_list_nested_types(column.dataType))
        if any(isinstance(part, VariantType) for part in parts):
            raise ImpossibleRequest(
                f"column {column.name} is a variant, which no result keeps; give to_json({column.name})"
            )
        if any(isinstance(part, _INTERVAL_TYPES) for part in parts):
            raise ImpossibleRequest(
                f"column {column.name} is an interval, which no result keeps; give a number, or cast it to string"
            )


def _list_nested_types(kind: DataType) -> Iterator[DataType]:
    """The type, and all types inside it."""
    yield kind
    inner: list[DataType] = []
    if isinstance(kind, StructType):
        inner = [field.dataType for field in kind.fields]
    elif isinstance(kind, ArrayType):
        inner = [kind.elementType]
    elif isinstance(kind, MapType):
        inner = [kind.keyType, kind.valueType]
    for part in inner:
        yield from _list_nested_types(part)
