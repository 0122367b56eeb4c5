"""`sql`: the log as tables of Spark SQL, all of one moment, wherever events are by now.

    events       every event: those in the log and those in files, as one
    executions   the row of every execution
    results      every reference
    and whatever rows the caller names

The answers do not change when events are moved to files: the view is the same set of rows.
"""

import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from noetl.model.errors import InvalidInput
from noetl.results.rowsets import conformed, stored, values_of
from noetl.spark.jobs.lake import LakeStore
from noetl.spark.jobs.places import session
from noetl.spark.jobs.rows import EVENTS
from noetl.spark.jobs.snapshot import LogSnapshot, snapshot
from noetl.spark.jobs.staged import staged
from noetl.spark.statements import statements

EVENTS_VIEW = """
select cast(seq * 1024 + shard as string) as event_id, cast(execution_id as string) as execution_id, event_type, step, status, at,
       command_id, attempt, result, meta, dedup_key, shard, seq, epoch, tenant
from {files}
"""
EXECUTIONS = """
select execution_id::text, path, status, noetl.moment(started_at) as started_at, noetl.moment(updated_at) as updated_at,
       noetl.moment(ended_at) as ended_at, (ended_at - started_at) / 1e6::float8 as seconds, parent::text, retry_of::text, error,
       steps, recovered, last_seq, shard::int, tenant
from noetl.execution order by execution_id
"""
RESULTS = """
select ref_id::text, execution_id::text, split_part(uri, '/', 6) as step, tier, uri, bytes, rows, format, sha256,
       parent_ref_id::text, at, tenant
from noetl.result_ref order by ref_id
"""
TABLES = {"executions": EXECUTIONS, "results": RESULTS}
NAMES = ("events", *TABLES)
READ = (
    "select",
    "values",
    "table",
    "describe",
    "desc",
    "show",
    "explain",
)  # nothing else begins so
MAY_READ = ("with", "from")  # `with … insert` does not
READING = f"noetl sql reads the tables {', '.join(NAMES)}; docs/jobs.md has their columns"
WRITING = "noetl sql reads; write with a spark step of a playbook"
_WORD = re.compile(r"^[\s(]*(\w+)")
Ask = Callable[[str], pa.Table]


@contextmanager
def asking(
    dsn: str,
    lake: LakeStore,
    url: str,
    wanted: tuple[str, ...] = NAMES,
    rows: Mapping[str, Path] | None = None,
) -> Iterator[Ask]:
    """A function from a question to its answer. Only the tables that are `wanted` are read; `rows`: Parquet files by name."""
    with tempfile.TemporaryDirectory(prefix="noetl-sql-") as folder, snapshot(dsn) as log:
        spark = session(url, Path(folder))
        try:
            for name in wanted:
                _view(spark, log, lake, Path(folder), name)
            for name, file in (rows or {}).items():
                spark.read.parquet(str(file)).createOrReplaceTempView(name)
            yield lambda text: _answer(spark, text)
        finally:
            spark.stop()


def mentioned(text: str) -> tuple[str, ...]:
    """Tables that a question may be about: one too many costs time, one too few an answer."""
    if re.match(r"\s*show\b", text, re.IGNORECASE):
        return NAMES
    return tuple(name for name in NAMES if re.search(rf"\b{name}\b", text, re.IGNORECASE))


def rows_of(answer: pa.Table) -> Iterator[list[Any]]:
    """The values of each row, in the order of the columns, as those of any result."""
    schema = stored(answer.schema)
    for batch in answer.to_batches():
        columns = conformed(batch, schema).columns
        yield from map(list, zip(*map(values_of, columns, schema), strict=True))


def records_of(answer: pa.Table) -> Iterator[dict[str, Any]]:
    """The same by name."""
    names = answer.column_names
    doubled = next((name for at, name in enumerate(names) if name in names[:at]), None)
    if doubled is not None:
        raise InvalidInput(
            f"two columns are named {doubled!r}, and a JSON object has a name once",
            hint=f"give one another name: … as {doubled}_2; without --json both are shown",
        )
    return (dict(zip(names, row, strict=True)) for row in rows_of(answer))


def question(text: str) -> str:
    """The statement that Spark is asked, which reads. Nothing but this stops another: a session may write what its server may."""
    found = [statement.text for statement in statements(text)]
    if len(found) != 1:
        raise InvalidInput(
            f"{len(found)} statements; noetl sql takes one", hint='noetl sql "select …"'
        )
    (asked,) = found
    (word, *_) = _WORD.findall(asked) or [asked]
    if word.lower() in MAY_READ:
        return f"({asked}\n)"  # a query is all that may stand in parentheses
    if word.lower() not in READ:
        raise InvalidInput(f"{word!r} does not begin a question", hint=WRITING)
    return asked


def _view(spark: Any, log: LogSnapshot, lake: LakeStore, work: Path, name: str) -> None:
    if name == "events":
        files = staged(log, lake, work) or [_file(EVENTS, (), work / "none.parquet")]
        spark.sql(EVENTS_VIEW, files=spark.read.parquet(*map(str, files))).createOrReplaceTempView(
            name
        )
        return
    rows = log.batches(TABLES[name])
    file = _file(rows.schema, rows, work / f"{name}.parquet")
    spark.read.parquet(str(file)).createOrReplaceTempView(name)


def _file(schema: pa.Schema, batches: Iterable[pa.RecordBatch], path: Path) -> Path:
    with pq.ParquetWriter(path, schema, compression="zstd", compression_level=1) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return path


def _answer(spark: Any, text: str) -> pa.Table:
    from pyspark.errors import PySparkException

    from noetl.spark.failures import failure

    try:
        return spark.sql(text).toArrow()
    except PySparkException as error:
        raise InvalidInput(failure(error)["message"], hint=READING) from error
