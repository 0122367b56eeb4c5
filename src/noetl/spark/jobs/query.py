"""`sql`: queries on tables of Spark SQL that show one snapshot of the log.

    events       every event, from the log and from compacted files
    executions   the row of every execution
    results      every reference
    and tables of Parquet files that the caller names

Compaction does not change the answers, because `events` covers log and files.
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
# First words of statements that only read.
READ = ("select", "values", "table", "describe", "desc", "show", "explain")
MAY_READ = ("with", "from")  # first words of reading and of writing statements (`with … insert`)
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
    """Yields a function that runs a query. Only the `wanted` tables are read; `rows` adds tables of
    Parquet files by name."""
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
    """The tables that a query may use. One too many costs time; one too few would fail the query."""
    if re.match(r"\s*show\b", text, re.IGNORECASE):
        return NAMES
    return tuple(name for name in NAMES if re.search(rf"\b{name}\b", text, re.IGNORECASE))


def rows_of(answer: pa.Table) -> Iterator[list[Any]]:
    """The values of each row, in the order of the columns, in the JSON form of results."""
    schema = stored(answer.schema)
    for batch in answer.to_batches():
        columns = conformed(batch, schema).columns
        yield from map(list, zip(*map(values_of, columns, schema), strict=True))


def records_of(answer: pa.Table) -> Iterator[dict[str, Any]]:
    """The rows as maps by column name. InvalidInput if two columns have the same name."""
    names = answer.column_names
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise InvalidInput(
                f"two columns are named {name!r}, and a JSON object has a name once",
                hint=f"give one another name: … as {name}_2; without --json both are shown",
            )
        seen.add(name)
    return (dict(zip(names, row, strict=True)) for row in rows_of(answer))


def question(text: str) -> str:
    """The statement of the text. InvalidInput if it is not one statement that reads.

    This is the only guard: a session may write where its server may.
    """
    found = [statement.text for statement in statements(text)]
    if len(found) != 1:
        raise InvalidInput(
            f"{len(found)} statements; noetl sql takes one", hint='noetl sql "select …"'
        )
    (statement,) = found
    words = _WORD.findall(statement) or [statement]
    first_word = words[0]
    if first_word.lower() in MAY_READ:
        return f"({statement}\n)"  # Spark accepts only a query in parentheses
    if first_word.lower() not in READ:
        raise InvalidInput(f"{first_word!r} does not begin a question", hint=WRITING)
    return statement


def _view(
    spark: Any,
    log: LogSnapshot,
    lake: LakeStore,
    work: Path,
    name: str,
) -> None:
    """Make the view of one of our tables."""
    if name == "events":
        files = staged(log, lake, work) or [_file(EVENTS, (), work / "none.parquet")]
        events = spark.read.parquet(*map(str, files))
        spark.sql(EVENTS_VIEW, files=events).createOrReplaceTempView(name)
        return
    rows = log.batches(TABLES[name])
    file = _file(rows.schema, rows, work / f"{name}.parquet")
    spark.read.parquet(str(file)).createOrReplaceTempView(name)


def _file(
    schema: pa.Schema,
    batches: Iterable[pa.RecordBatch],
    path: Path,
) -> Path:
    with pq.ParquetWriter(path, schema, compression="zstd", compression_level=1) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return path


def _answer(spark: Any, text: str) -> pa.Table:
    """Run a query. InvalidInput if Spark refuses it."""
    from pyspark.errors import PySparkException

    from noetl.spark.failures import failure

    try:
        return spark.sql(text).toArrow()
    except PySparkException as error:
        raise InvalidInput(failure(error)["message"], hint=READING) from error
