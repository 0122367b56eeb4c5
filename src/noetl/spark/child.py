"""What runs in the processes of the spark tool: one command each, forked from a process that has loaded PySpark already.

A request comes by the socket as one JSON text with its length before it. Lines of JSON go back: `{progress}` now and then, and
`{answer}` at the end: `{value}`, `{frames}` or `{error}`. Spark writes rows to files, of which the answer tells names, sizes,
rows and hashes; the only rows that pass here are a few that did not meet a check. What code prints goes to its own descriptors.
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
AFAR = {  # what our own servers have: moments as such, and not in the zone of that machine
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.session.timeZone": "UTC",
}
_INTERVALS = (CalendarIntervalType, DayTimeIntervalType, YearMonthIntervalType)
SHARING = {  # looked at when a session is made
    "spark.sql.artifact.isolation.enabled": "false",
    "spark.sql.artifact.isolation.alwaysApplyClassloader": "false",
}


def serve(_memory: int, _cpu: int | None) -> None:
    """The answer is told before the session is ended: nobody has to wait for that."""
    logging.disable(logging.CRITICAL)  # PySpark logs what it raises
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
    except BaseException as error:  # whatever it is, it is the answer
        answer = {"error": failure(error), "sample": sample_of(error)}
    _be_quiet()
    _send({"answer": answer})
    if spark is not None:
        spark.stop()


def _be_quiet() -> None:
    """What was printed comes before the answer, and nothing after it."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    for stream, descriptor in ((sys.stdout, 1), (sys.stderr, 2)):
        stream.flush()
        os.dup2(nothing, descriptor)


def _received() -> bytes:
    size = int.from_bytes(os.read(SOCKET, 4), "big")
    parts = []
    while size > 0 and (data := os.read(SOCKET, size)):
        parts.append(data)
        size -= len(data)
    return b"".join(parts)


def _send(message: dict[str, Any]) -> None:
    data = json.dumps(message).encode() + b"\n"
    while data:
        data = data[os.write(SOCKET, data) :]


def connect(request: dict[str, Any], session: str) -> SparkSession:
    url = request["url"]
    joint = "" if url.endswith(";") else ";" if "/;" in url else "/;"
    spark = SparkSession.builder.remote(f"{url}{joint}session_id={session};user_id={USER}").create()
    return _impatient(spark, request)


def _impatient(spark: SparkSession, request: dict[str, Any]) -> SparkSession:
    """No network is between us and our own server: if it does not answer, it is gone."""
    spark.client.set_retry_policies([QUICK if request["ours"] else PATIENT])
    return spark


def begin(request: dict[str, Any]) -> SparkSession:
    """The session of a command: one of its own from the start, or a copy of `base`, which uses the classes of the server. Spark
    keeps the code it makes for a query by the classes it was made with, so there it is made once, and not for every session."""
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
    for name, value in SHARING.items():
        base.conf.set(name, value)
    return _impatient(base.cloneSession(session), request)


def release(request: dict[str, Any]) -> dict[str, Any]:
    """End these sessions: what runs in them is interrupted, and nothing can begin in them any more."""
    for session in request["sessions"]:
        try:
            spark = connect(request, session)  # held: one that nobody holds closes its client
            spark.client.release_session()
        except Exception as error:  # one that is closed already is fine
            if failure(error)["code"] != INTERRUPTED:
                raise
    return {"value": None}


# ---- one command ---------------------------------------------------------------------------------------------------------


def run(spark: SparkSession, request: dict[str, Any]) -> dict[str, Any]:
    metrics = ProgressMetrics(lambda said: _send({"progress": said}))
    for tag in request["tags"]:
        spark.addTag(tag)
    conf = request["conf"] if request["ours"] else AFAR | request["conf"]
    for name, value in conf.items():
        spark.conf.set(name, value)
    spark.registerProgressHandler(cast(ProgressHandler, metrics))  # any function will do
    if "loop" in request:
        return {"frames": {"": _loop(spark, request)}, "single": True, "spark": metrics.told()}
    if any(
        given.get("format") == NOETL for given in request["inputs"].values()
    ) or NOETL in request.get("code", ""):
        _register(spark, request["ticket"])
    if "staged" in request:  # an earlier lease had computed the rows
        rows = spark.createDataFrame([], "nothing int")
        return {"frames": {"": publish(rows, request)}, "single": True, "spark": metrics.told()}
    frames = {name: _input(spark, name, given) for name, given in request["inputs"].items()}
    result = _sql(spark, request["sql"]) if "sql" in request else _code(spark, request, frames)
    return {**_answered(result, request), "spark": metrics.told()}


def _register(spark: SparkSession, ticket: str) -> None:
    """The data source `noetl`, in this session."""
    from noetl.spark.source import source_with  # only what reads by it needs it

    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(source_with(ticket))


def _input(spark: SparkSession, name: str, given: dict[str, Any]) -> DataFrame:
    """A view of that name, and a frame."""
    try:
        if "table" in given:
            frame = spark.table(given["table"])
        else:
            reader = spark.read.format(given["format"]).options(**given.get("options", {}))
            if "schema" in given:
                reader = reader.schema(_schema(given))
            for folder in filter(None, map(local_folder, given["paths"])):
                settle(folder)
            frame = reader.load(given["paths"] if len(given["paths"]) > 1 else given["paths"][0])
        for column in given.get("decimals", ()):
            frame = frame.withColumn(column, exact(name, column))
        if given.get("columns"):
            frame = frame.select(*given["columns"])
        if parts := given.get("partition"):
            frame = frame.repartitionByRange(int(parts["count"]), parts["column"])
        frame.createOrReplaceTempView(name)
    except PySparkException as error:
        found = _naming_file(spark, given, error) if MALFORMED in str(error) else error
        raise Broken(f"input {name}", found) from error
    except Exception as error:
        raise Broken(f"input {name}", error) from error
    return frame


def _naming_file(
    spark: SparkSession, given: dict[str, Any], error: PySparkException
) -> PySparkException:
    """A broken record that is found while Spark looks for columns comes without the name of its file. Reading names it."""
    reader = spark.read.format(given["format"]).options(**given["options"]).schema("nothing string")
    try:
        reader.load(given["paths"]).count()
    except PySparkException as named:
        return named
    return error


def _schema(given: dict[str, Any]) -> StructType:
    """Of the columns that are wanted: no others are read."""
    schema = native_schema(pa.ipc.read_schema(pa.BufferReader(bytes.fromhex(given["schema"]))))
    return from_arrow_schema(
        pa.schema([schema.field(name) for name in given.get("columns") or schema.names])
    )


def _sql(spark: SparkSession, statements: list[dict[str, Any]]) -> Any:
    frame: Any = None
    for number, statement in enumerate(statements, start=1):
        try:
            frame = spark.sql(statement["text"], args=statement["values"] or None)
            _ = frame.schema  # what is wrong with it is told of this statement
        except Exception as error:
            raise Broken(f"statement {number}" if len(statements) > 1 else "sql", error) from error
    return frame


def _code(spark: SparkSession, request: dict[str, Any], frames: Mapping[str, DataFrame]) -> Any:
    given = {**request["given"], **frames, "spark": spark}
    return python_child.execute(python_child.program(request["code"]), given)


def _loop(spark: SparkSession, request: dict[str, Any]) -> dict[str, Any]:
    """One task for every shard; what they tell is all that comes back."""
    folder = os.path.join(request["folder"], "result")
    os.makedirs(folder, exist_ok=True)
    work = {**request["loop"], "folder": folder}
    shards = spark.range(0, work["shards"], 1, work["shards"]).mapInArrow(
        partial(entry.run, work), entry.ANSWER
    )
    told = [
        json.loads(row["told"])
        for row in sorted(shards.collect(), key=lambda row: int(row["shard"]))
    ]
    made = {
        "columns": entry.row_schema(work).names,
        "expect": {},
        "partitions": len(told),
        "files": [each["file"] for each in told],
        "shards": [each["items"] for each in told],
        "provenance": [each["provenance"] for each in told],
    }
    keep_manifest(folder, made)
    return made


# ---- results -------------------------------------------------------------------------------------------------------------


def _refuse_equal_keys(result: Any) -> None:
    try:
        python_child.refuse_equal_keys(result)
    except ValueError as error:
        raise NotJson(str(error)) from error


def _answered(result: Any, request: dict[str, Any]) -> dict[str, Any]:
    if isinstance(result, DataFrame):
        return {"frames": {"": _stored(result, "", request)}, "single": True}
    for named, asked in (
        ("expect", request["expect"]),
        ("output.path", request["output"].get("path")),
    ):
        if asked:
            raise Broken(
                named, Wrong(f"it is for a step that gives one DataFrame, not {_called(result)}")
            )
    _refuse_equal_keys(result)
    if isinstance(result, dict) and any(isinstance(part, DataFrame) for part in result.values()):
        frames = {
            name: _stored(part, name, request)
            for name, part in result.items()
            if isinstance(part, DataFrame)
        }
        return {
            "frames": frames,
            "value": {name: part for name, part in result.items() if name not in frames},
        }
    try:
        text = python_child.ENCODER.encode(result)
    except (TypeError, ValueError, RecursionError) as error:  # the code's mistake
        raise NotJson(python_child.why(result, error)) from error
    if len(text) > request["limit"]:
        raise ValueTooLarge(
            f"the value is larger than {request['limit'] >> 20} MB; give it as a DataFrame"
        )
    return {"value": json.loads(text)}


def _called(result: Any) -> str:
    if isinstance(result, dict):
        return "a map"
    return "nothing" if result is None else f"a value of type {type(result).__name__}"


def _stored(frame: DataFrame, name: str, request: dict[str, Any]) -> dict[str, Any]:
    if not frame.columns:
        return {"files": [], "columns": [], "expect": {}}
    if request["output"].get("path"):
        return publish(frame, request)
    _check_types(frame.schema)
    if request["output"].get("kind"):
        request = {
            **request,
            "output": {},
        }  # how a table is written says nothing of the files on the way
    return write(frame, os.path.join(request["folder"], name or "result"), request)


def _check_types(schema: StructType) -> None:
    """Types that the files of a result cannot say: whoever read them would get something else."""
    for column in schema.fields:
        if any(isinstance(part, VariantType) for part in _parts(column.dataType)):
            raise Wrong(
                f"column {column.name} is a variant, which no result keeps; give to_json({column.name})"
            )
        if any(isinstance(part, _INTERVALS) for part in _parts(column.dataType)):
            raise Wrong(
                f"column {column.name} is an interval, which no result keeps; give a number, or cast it to string"
            )


def _parts(kind: DataType) -> Iterator[DataType]:
    yield kind
    inner = [field.dataType for field in kind.fields] if isinstance(kind, StructType) else []
    inner += [kind.elementType] if isinstance(kind, ArrayType) else []
    inner += [kind.keyType, kind.valueType] if isinstance(kind, MapType) else []
    for part in inner:
        yield from _parts(part)
