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
from noetl.results.formats.rowsets import conform_batch, list_column_values, make_storage_schema
from noetl.spark.jobs.event_files import stage_events
from noetl.spark.jobs.event_rows import EVENT_SCHEMA
from noetl.spark.jobs.execution_map import open_job_session
from noetl.spark.jobs.lake import LakeStore
from noetl.spark.jobs.snapshot import LogSnapshot, open_snapshot
from noetl.spark.step.statements import parse_spark_sql

EVENTS_VIEW = """
select cast(seq * 1024 + shard as string) as event_id, cast(execution_id as string) as execution_id, event_type, step, status, at,
       command_id, attempt, result, meta, dedup_key, shard, seq, epoch, tenant
from {files}
"""
EXECUTIONS_QUERY = """
select execution_id::text, path, status, noetl.moment(started_at) as started_at, noetl.moment(updated_at) as updated_at,
       noetl.moment(ended_at) as ended_at, (ended_at - started_at) / 1e6::float8 as seconds, parent::text, retry_of::text, error,
       steps, recovered, last_seq, shard::int, tenant
from noetl.execution order by execution_id
"""
RESULTS_QUERY = """
select ref_id::text, execution_id::text, split_part(uri, '/', 6) as step, tier, uri, bytes, rows, format, sha256,
       parent_ref_id::text, at, tenant
from noetl.result_ref order by ref_id
"""
TABLE_QUERIES = {"executions": EXECUTIONS_QUERY, "results": RESULTS_QUERY}
TABLE_NAMES = ("events", *TABLE_QUERIES)
# First words of statements that only read.
READING_WORDS = ("select", "values", "table", "describe", "desc", "show", "explain")
AMBIGUOUS_WORDS = (
    "with",
    "from",
)  # first words of reading and of writing statements (`with … insert`)
READING_HINT = (
    f"noetl sql reads the tables {', '.join(TABLE_NAMES)}; docs/jobs.md has their columns"
)
WRITING_HINT = "noetl sql reads; write with a spark step of a playbook"
_FIRST_WORD = re.compile(r"^[\s(]*(\w+)")
QueryFunction = Callable[[str], pa.Table]


@contextmanager
def open_query(
    dsn: str,
    lake: LakeStore,
    url: str,
    wanted: tuple[str, ...] = TABLE_NAMES,
    rows: Mapping[str, Path] | None = None,
) -> Iterator[QueryFunction]:
    """Yields a function that runs a query. Only the `wanted` tables are read; `rows` adds tables of
    Parquet files by name."""
    with tempfile.TemporaryDirectory(prefix="noetl-sql-") as folder, open_snapshot(dsn) as log:
        spark = open_job_session(url, Path(folder))
        try:
            for name in wanted:
                _make_table_view(spark, log, lake, Path(folder), name)
            for name, file in (rows or {}).items():
                spark.read.parquet(str(file)).createOrReplaceTempView(name)
            yield lambda text: _run_spark_query(spark, text)
        finally:
            spark.stop()


def find_mentioned_tables(text: str) -> tuple[str, ...]:
    """The tables that a query may use. One too many costs time; one too few would fail the query."""
    if re.match(r"\s*show\b", text, re.IGNORECASE):
        return TABLE_NAMES
    return tuple(name for name in TABLE_NAMES if re.search(rf"\b{name}\b", text, re.IGNORECASE))


def list_answer_rows(answer: pa.Table) -> Iterator[list[Any]]:
    """The values of each row, in the order of the columns, in the JSON form of results."""
    schema = make_storage_schema(answer.schema)
    for batch in answer.to_batches():
        columns = conform_batch(batch, schema).columns
        yield from map(list, zip(*map(list_column_values, columns, schema), strict=True))


def list_answer_records(answer: pa.Table) -> Iterator[dict[str, Any]]:
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
    return (dict(zip(names, row, strict=True)) for row in list_answer_rows(answer))


def parse_question(text: str) -> str:
    """The statement of the text. InvalidInput if it is not one statement that reads.

    This is the only guard: a session may write where its server may.
    """
    found = [statement.text for statement in parse_spark_sql(text)]
    if len(found) != 1:
        raise InvalidInput(
            f"{len(found)} statements; noetl sql takes one", hint='noetl sql "select …"'
        )
    (statement,) = found
    words = _FIRST_WORD.findall(statement) or [statement]
    first_word = words[0]
    if first_word.lower() in AMBIGUOUS_WORDS:
        return f"({statement}\n)"  # Spark accepts only a query in parentheses
    if first_word.lower() not in READING_WORDS:
        raise InvalidInput(f"{first_word!r} does not begin a question", hint=WRITING_HINT)
    return statement


def _make_table_view(
    spark: Any,
    log: LogSnapshot,
    lake: LakeStore,
    work: Path,
    name: str,
) -> None:
    """Make the view of one of our tables."""
    if name == "events":
        files = stage_events(log, lake, work) or [
            _write_table_file(EVENT_SCHEMA, (), work / "none.parquet")
        ]
        events = spark.read.parquet(*map(str, files))
        spark.sql(EVENTS_VIEW, files=events).createOrReplaceTempView(name)
        return
    rows = log.query_batches(TABLE_QUERIES[name])
    file = _write_table_file(rows.schema, rows, work / f"{name}.parquet")
    spark.read.parquet(str(file)).createOrReplaceTempView(name)


def _write_table_file(
    schema: pa.Schema,
    batches: Iterable[pa.RecordBatch],
    path: Path,
) -> Path:
    with pq.ParquetWriter(path, schema, compression="zstd", compression_level=1) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return path


def _run_spark_query(spark: Any, text: str) -> pa.Table:
    """Run a query. InvalidInput if Spark refuses it."""
    from pyspark.errors import PySparkException

    from noetl.spark.client.failures import make_spark_failure

    try:
        return spark.sql(text).toArrow()
    except PySparkException as error:
        raise InvalidInput(make_spark_failure(error).message, hint=READING_HINT) from error
