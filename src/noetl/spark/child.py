"""The client process of the spark tool: it runs one command and ends.

The process is forked from one that has loaded PySpark already. The request comes by a socket as
one JSON text, preceded by its length. Lines of JSON go back: `{progress}` from time to time, and
`{answer}` at the end, which holds `{value}`, `{frames}` or `{error}`.

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
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.connect.client.retries import DefaultPolicy
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

from noetl.spark import entry
from noetl.spark.arrow import native_schema
from noetl.spark.commits import settle
from noetl.spark.errors import Broken, NotJson, ValueTooLarge, Wrong
from noetl.spark.failures import INTERRUPTED, MALFORMED, failure, is_unknown, sample_of
from noetl.spark.messages import FrameManifest, InputSpec, SparkAnswer, SparkRequest
from noetl.spark.numbers import exact
from noetl.spark.paths import local_folder
from noetl.spark.progress import ProgressMetrics
from noetl.spark.publishing import publish
from noetl.spark.writing import keep_manifest, write
from noetl.tools import python_child

SOCKET = 3
USER = NOETL = "noetl"
QUICK = DefaultPolicy(max_retries=6, backoff_multiplier=2.0, max_backoff=500)
PATIENT = DefaultPolicy(max_retries=11, backoff_multiplier=2.0, max_backoff=5_000)  # half a minute
# Session settings for servers of others; our own servers start with them. Timestamps are instants
# and do not depend on the time zone of the server's machine.
AFAR = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.session.timeZone": "UTC",
}
_INTERVALS = (CalendarIntervalType, DayTimeIntervalType, YearMonthIntervalType)
SHARING = {  # Spark reads these settings when it makes a session
    "spark.sql.artifact.isolation.enabled": "false",
    "spark.sql.artifact.isolation.alwaysApplyClassloader": "false",
}


def serve(_memory: int, _cpu: int | None) -> None:
    """Run one request and send its answer.

    The session is stopped after the answer is sent, so that the worker need not wait for it.
    """
    logging.disable(logging.CRITICAL)  # PySpark also logs the errors that it raises
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # they are files
    request = json.loads(_received())
    spark: SparkSession | None = None
    try:
        if request["op"] == "release":
            answer = release(request)
        else:
            spark = begin(request)
            answer = run(spark, request)
    except BaseException as error:  # every error becomes the answer
        answer = {"error": failure(error), "sample": sample_of(error)}
    _be_quiet()
    _send({"answer": answer})
    if spark is not None:
        spark.stop()


def _be_quiet() -> None:
    """Flush what was printed, so that it precedes the answer, and discard all later output."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    for stream, descriptor in ((sys.stdout, 1), (sys.stderr, 2)):
        stream.flush()
        os.dup2(devnull, descriptor)


def _received() -> bytes:
    size = int.from_bytes(os.read(SOCKET, 4), "big")
    parts = []
    while size > 0:
        data = os.read(SOCKET, size)
        if not data:
            break
        parts.append(data)
        size -= len(data)
    return b"".join(parts)


def _send(message: dict[str, Any]) -> None:
    data = json.dumps(message).encode() + b"\n"
    while data:
        data = data[os.write(SOCKET, data) :]


def connect(request: SparkRequest, session: str) -> SparkSession:
    """Open the session with this id on the server that the request names."""
    url = request["url"]
    if url.endswith(";"):
        separator = ""
    elif "/;" in url:
        separator = ";"
    else:
        separator = "/;"
    address = f"{url}{separator}session_id={session};user_id={USER}"
    spark = SparkSession.builder.remote(address).create()
    return _impatient(spark, request)


def _impatient(spark: SparkSession, request: SparkRequest) -> SparkSession:
    """Set how long the client retries.

    No network is between this process and our own server: if that does not answer, it is gone.
    """
    policy = QUICK if request["ours"] else PATIENT
    spark.client.set_retry_policies([policy])
    return spark


def begin(request: SparkRequest) -> SparkSession:
    """Open the session of a command: a new one, or a copy of the session `base`.

    Spark caches the code that it generates for a query by class loader. Copies of `base` share the
    class loader of the server, so Spark generates the code once and not for every session.
    """
    session = request["session"]
    if request["base"] is None:
        return connect(request, session)
    base = connect(request, request["base"])
    try:
        return _impatient(base.cloneSession(session), request)
    except grpc.RpcError as error:
        if error.code() is grpc.StatusCode.UNIMPLEMENTED:  # an older server
            return connect(request, session)
        if not is_unknown(error):
            raise
    # The server does not know `base` yet: setting these makes it.
    for name, value in SHARING.items():
        base.conf.set(name, value)
    return _impatient(base.cloneSession(session), request)


def release(request: SparkRequest) -> SparkAnswer:
    """End these sessions. Spark interrupts their operations and accepts no new ones for them."""
    for session in request["sessions"]:
        try:
            spark = connect(request, session)  # a variable: a collected session closes its client
            spark.client.release_session()
        except Exception as error:  # a session that is closed already is fine
            if failure(error)["code"] != INTERRUPTED:
                raise
    return {"value": None}


# ---- one command ---------------------------------------------------------------------------------------------------------


def run(spark: SparkSession, request: SparkRequest) -> SparkAnswer:
    """Run the command of a request in its session."""
    metrics = ProgressMetrics(lambda line: _send({"progress": line}))
    for tag in request["tags"]:
        spark.addTag(tag)
    _configure(spark, request)
    spark.registerProgressHandler(cast(ProgressHandler, metrics))  # any function will do
    if "loop" in request:
        return {
            "frames": {"": _loop(spark, request)},
            "single": True,
            "spark": metrics.told(),
        }
    if _needs_source(request):
        _register(spark, request["ticket"])
    if "staged" in request:  # an earlier lease had computed the rows
        rows = spark.createDataFrame([], "nothing int")
        return {
            "frames": {"": publish(rows, request)},
            "single": True,
            "spark": metrics.told(),
        }
    frames = {name: _input(spark, name, spec) for name, spec in request["inputs"].items()}
    if "sql" in request:
        result = _sql(spark, request["sql"])
    else:
        result = _code(spark, request, frames)
    return {**_answered(result, request), "spark": metrics.told()}


def _configure(spark: SparkSession, request: SparkRequest) -> None:
    conf = request["conf"]
    if not request["ours"]:
        conf = AFAR | conf
    for name, value in conf.items():
        spark.conf.set(name, value)


def _needs_source(request: SparkRequest) -> bool:
    """Whether an input uses the data source `noetl`, or the code mentions it."""
    specs = request["inputs"].values()
    if any(spec.get("format") == NOETL for spec in specs):
        return True
    return NOETL in request.get("code", "")


def _register(spark: SparkSession, ticket: str) -> None:
    """Register the data source `noetl` in this session."""
    from noetl.spark.source import source_with  # only commands that read by it load it

    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(source_with(ticket))


def _input(spark: SparkSession, name: str, spec: InputSpec) -> DataFrame:
    """Load an input as a frame, and make a view of its name."""
    try:
        frame = _load_input(spark, spec)
        for column in spec.get("decimals", ()):
            frame = frame.withColumn(column, exact(name, column))
        if spec.get("columns"):
            frame = frame.select(*spec["columns"])
        if parts := spec.get("partition"):
            frame = frame.repartitionByRange(int(parts["count"]), parts["column"])
        frame.createOrReplaceTempView(name)
    except PySparkException as error:
        if MALFORMED in str(error):
            raise Broken(f"input {name}", _naming_file(spark, spec, error)) from error
        raise Broken(f"input {name}", error) from error
    except Exception as error:
        raise Broken(f"input {name}", error) from error
    return frame


def _load_input(spark: SparkSession, spec: InputSpec) -> DataFrame:
    if "table" in spec:
        return spark.table(spec["table"])
    options = spec.get("options", {})
    reader = spark.read.format(spec["format"]).options(**options)
    if "schema" in spec:
        reader = reader.schema(_schema(spec))
    paths = spec["paths"]
    for folder in filter(None, map(local_folder, paths)):
        settle(folder)
    return reader.load(paths if len(paths) > 1 else paths[0])


def _naming_file(spark: SparkSession, spec: InputSpec, error: PySparkException) -> PySparkException:
    """The error for a broken record, with the name of its file.

    While Spark infers columns, its error does not name the file. Reading the rows names it.
    """
    reader = spark.read.format(spec["format"]).options(**spec["options"])
    reader = reader.schema("nothing string")
    try:
        reader.load(spec["paths"]).count()
    except PySparkException as error_with_file:
        return error_with_file
    return error


def _schema(spec: InputSpec) -> StructType:
    """The schema of the selected columns. Spark reads no others."""
    serialized = bytes.fromhex(spec["schema"])
    schema = native_schema(pa.ipc.read_schema(pa.BufferReader(serialized)))
    names = spec.get("columns") or schema.names
    return from_arrow_schema(pa.schema([schema.field(name) for name in names]))


def _sql(spark: SparkSession, statements: list[dict[str, Any]]) -> Any:
    """Run the statements in order. Returns the frame of the last one."""
    frame: Any = None
    for number, statement in enumerate(statements, start=1):
        try:
            frame = spark.sql(statement["text"], args=statement["values"] or None)
            _ = frame.schema  # analyses the statement now, so that an error names it
        except Exception as error:
            where = f"statement {number}" if len(statements) > 1 else "sql"
            raise Broken(where, error) from error
    return frame


def _code(spark: SparkSession, request: SparkRequest, frames: Mapping[str, DataFrame]) -> Any:
    arguments = {**request["given"], **frames, "spark": spark}
    return python_child.execute(python_child.program(request["code"]), arguments)


def _loop(spark: SparkSession, request: SparkRequest) -> FrameManifest:
    """Run a loop, one task per shard. Only the reports of the shards come back."""
    folder = os.path.join(request["folder"], "result")
    os.makedirs(folder, exist_ok=True)
    work = {**request["loop"], "folder": folder}
    numbers = spark.range(0, work["shards"], 1, work["shards"])
    shards = numbers.mapInArrow(partial(entry.run, work), entry.ANSWER)
    rows = sorted(shards.collect(), key=lambda row: int(row["shard"]))
    reports = [json.loads(row["told"]) for row in rows]
    manifest = {
        "columns": entry.row_schema(work).names,
        "expect": {},
        "partitions": len(reports),
        "files": [report["file"] for report in reports],
        "shards": [report["items"] for report in reports],
        "provenance": [report["provenance"] for report in reports],
    }
    keep_manifest(folder, manifest)
    return manifest


# ---- results -------------------------------------------------------------------------------------------------------------


def _refuse_equal_keys(result: Any) -> None:
    try:
        python_child.refuse_equal_keys(result)
    except ValueError as error:
        raise NotJson(str(error)) from error


def _answered(result: Any, request: SparkRequest) -> SparkAnswer:
    """The answer for the result of a command: its frames are written to files."""
    if isinstance(result, DataFrame):
        return {"frames": {"": _stored(result, "", request)}, "single": True}
    _refuse_frame_options(result, request)
    _refuse_equal_keys(result)
    if isinstance(result, dict):
        frames = {
            name: _stored(part, name, request)
            for name, part in result.items()
            if isinstance(part, DataFrame)
        }
        if frames:
            values = {name: part for name, part in result.items() if name not in frames}
            return {"frames": frames, "value": values}
    return {"value": _json_value(result, request["limit"])}


def _refuse_frame_options(result: Any, request: SparkRequest) -> None:
    """`expect` and `output.path` need a step that gives one DataFrame."""
    options = {"expect": request["expect"], "output.path": request["output"].get("path")}
    for name, option in options.items():
        if option:
            message = f"it is for a step that gives one DataFrame, not {_called(result)}"
            raise Broken(name, Wrong(message))


def _json_value(result: Any, limit: int) -> Any:
    """The result as plain JSON data. `limit` bounds its bytes."""
    try:
        text = python_child.ENCODER.encode(result)
    except (TypeError, ValueError, RecursionError) as error:  # the code's mistake
        raise NotJson(python_child.why(result, error)) from error
    if len(text) > limit:
        raise ValueTooLarge(f"the value is larger than {limit >> 20} MB; give it as a DataFrame")
    return json.loads(text)


def _called(result: Any) -> str:
    if isinstance(result, dict):
        return "a map"
    if result is None:
        return "nothing"
    return f"a value of type {type(result).__name__}"


def _stored(frame: DataFrame, name: str, request: SparkRequest) -> FrameManifest:
    """Write a frame to the path that the step names, or to the folder of the command."""
    if not frame.columns:
        return {"files": [], "columns": [], "expect": {}}
    if request["output"].get("path"):
        return publish(frame, request)
    _check_types(frame.schema)
    if request["output"].get("kind"):
        # The options of a database table do not apply to these intermediate files.
        request = {**request, "output": {}}
    folder = os.path.join(request["folder"], name or "result")
    return write(frame, folder, request)


def _check_types(schema: StructType) -> None:
    """Refuse types that Parquet does not keep: a reader would get another type."""
    for column in schema.fields:
        parts = list(_parts(column.dataType))
        if any(isinstance(part, VariantType) for part in parts):
            raise Wrong(
                f"column {column.name} is a variant, which no result keeps; give to_json({column.name})"
            )
        if any(isinstance(part, _INTERVALS) for part in parts):
            raise Wrong(
                f"column {column.name} is an interval, which no result keeps; give a number, or cast it to string"
            )


def _parts(kind: DataType) -> Iterator[DataType]:
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
        yield from _parts(part)
