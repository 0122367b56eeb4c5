"""Applies a function to every execution: in Spark's tasks, or in this process, with equal output.

The input is a list of Parquet files. Each holds whole executions in order, so no grouping is
needed: a task takes a file, and at most a few executions are in memory at once.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq

from noetl.model.ids import derive_id
from noetl.spark.jobs.event_rows import split_by_execution
from noetl.spark.messages import ConnectServer

ExecutionFunction = Callable[[pa.Table], pa.Table]
MAX_BATCH_TABLES = 1_000  # small tables that become one batch
# Loggers of PySpark that repeat the errors that it raises.
DUPLICATE_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")


class ExecutionMap(Protocol):
    def map_executions(
        self,
        function: ExecutionFunction,
        schema: pa.Schema,
        files: list[Path],
        work: Path,
    ) -> Iterator[pa.Table]:
        """The results of `function` for all executions, in no order. `work` is a folder for
        intermediate files."""
        ...


class LocalExecutionMap:
    def map_executions(
        self,
        function: ExecutionFunction,
        schema: pa.Schema,
        files: list[Path],
        work: Path,
    ) -> Iterator[pa.Table]:
        for file in files:
            yield from apply_to_file(function, str(file))


def apply_to_file(function: ExecutionFunction, file: str) -> Iterator[pa.Table]:
    """Apply the function to the executions of a file. Small results are combined."""
    results: list[pa.Table] = []
    for events in split_by_execution(pq.ParquetFile(file).iter_batches()):
        results.append(function(events))
        if len(results) == MAX_BATCH_TABLES:
            yield pa.concat_tables(results)
            results = []
    if results:
        yield pa.concat_tables(results)


class SparkExecutionMap:
    """Runs the function on a Spark Connect server, which sees the files by the same paths."""

    def __init__(self, url: str) -> None:
        self._url = url

    def map_executions(
        self,
        function: ExecutionFunction,
        schema: pa.Schema,
        files: list[Path],
        work: Path,
    ) -> Iterator[pa.Table]:
        from pyspark.sql.pandas.types import from_arrow_schema

        names = [str(file) for file in files]

        def apply_to_files(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in numbers:
                for number in batch.column(0).to_pylist():
                    for table in apply_to_file(function, names[number]):
                        yield from table.combine_chunks().to_batches()

        if not files:
            return
        spark = open_job_session(self._url, work)
        try:
            tasks = spark.range(0, len(names), 1, len(names))
            results = tasks.mapInArrow(apply_to_files, from_arrow_schema(schema))
            results.write.parquet(str(work / "made"))
        finally:
            spark.stop()
        for file in sorted((work / "made").glob("*.parquet")):
            for batch in pq.ParquetFile(file).iter_batches(MAX_BATCH_TABLES):
                yield pa.Table.from_batches([batch]).cast(schema)


def open_job_session(url: str, work: Path) -> Any:
    """The Spark session of one job. Its id is computed from the job's unique folder."""
    from pyspark.logger import PySparkLogger

    from noetl.spark.client.process import REMOTE_SESSION_CONF, open_session

    for name in DUPLICATE_LOGGERS:
        PySparkLogger.getLogger(name).disabled = True
    session_id = UUID(derive_id("job", str(work)))
    spark = open_session(ConnectServer(url, ours=False), str(session_id))
    for name, value in REMOTE_SESSION_CONF.items():  # days are days of UTC, wherever the server is
        spark.conf.set(name, value)
    return spark
