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

from noetl.model.ids import derive
from noetl.spark.jobs.rows import by_execution

Each = Callable[[pa.Table], pa.Table]
TOGETHER = 1_000  # small tables that become one batch
# Loggers of PySpark that repeat the errors that it raises.
SAID_TWICE = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")


class Runs(Protocol):
    def each(
        self,
        function: Each,
        schema: pa.Schema,
        files: list[Path],
        work: Path,
    ) -> Iterator[pa.Table]:
        """The results of `function` for all executions, in no order. `work` is a folder for
        intermediate files."""
        ...


class InProcess:
    def each(
        self,
        function: Each,
        schema: pa.Schema,
        files: list[Path],
        work: Path,
    ) -> Iterator[pa.Table]:
        for file in files:
            yield from applied(function, str(file))


def applied(function: Each, file: str) -> Iterator[pa.Table]:
    """Apply the function to the executions of a file. Small results are combined."""
    results: list[pa.Table] = []
    for events in by_execution(pq.ParquetFile(file).iter_batches()):
        results.append(function(events))
        if len(results) == TOGETHER:
            yield pa.concat_tables(results)
            results = []
    if results:
        yield pa.concat_tables(results)


class OnSpark:
    """Runs the function on a Spark Connect server, which sees the files by the same paths."""

    def __init__(self, url: str) -> None:
        self._url = url

    def each(
        self,
        function: Each,
        schema: pa.Schema,
        files: list[Path],
        work: Path,
    ) -> Iterator[pa.Table]:
        from pyspark.sql.pandas.types import from_arrow_schema

        names = [str(file) for file in files]

        def apply_to_files(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in numbers:
                for number in batch.column(0).to_pylist():
                    for table in applied(function, names[number]):
                        yield from table.combine_chunks().to_batches()

        if not files:
            return
        spark = session(self._url, work)
        try:
            tasks = spark.range(0, len(names), 1, len(names))
            results = tasks.mapInArrow(apply_to_files, from_arrow_schema(schema))
            results.write.parquet(str(work / "made"))
        finally:
            spark.stop()
        for file in sorted((work / "made").glob("*.parquet")):
            for batch in pq.ParquetFile(file).iter_batches(TOGETHER):
                yield pa.Table.from_batches([batch]).cast(schema)


def session(url: str, work: Path) -> Any:
    """The Spark session of one job. Its id is computed from the job's unique folder."""
    from pyspark.logger import PySparkLogger

    from noetl.spark.child import AFAR, connect

    for name in SAID_TWICE:
        PySparkLogger.getLogger(name).disabled = True
    session_id = UUID(derive("job", str(work)))
    spark = connect({"url": url, "ours": False}, str(session_id))
    for name, value in AFAR.items():  # days are days of UTC, wherever the server is
        spark.conf.set(name, value)
    return spark
