"""Where a function of one execution runs: in Spark's tasks, or in this process. The output is the same.

The input are Parquet files with whole executions in each, in order. So nothing has to be grouped: a task takes a file, and
neither place holds more than a few executions at once.
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
SAID_TWICE = (
    "SQLQueryContextLogger",
    "DataFrameQueryContextLogger",
)  # PySpark's, of what it raises too


class Runs(Protocol):
    def each(
        self, function: Each, schema: pa.Schema, files: list[Path], work: Path
    ) -> Iterator[pa.Table]:
        """What `function` makes of every execution, in no order. `work`: a folder for files on the way."""
        ...


class InProcess:
    def each(
        self, function: Each, schema: pa.Schema, files: list[Path], work: Path
    ) -> Iterator[pa.Table]:
        for file in files:
            yield from applied(function, str(file))


def applied(function: Each, file: str) -> Iterator[pa.Table]:
    made: list[pa.Table] = []
    for events in by_execution(pq.ParquetFile(file).iter_batches()):
        made.append(function(events))
        if len(made) == TOGETHER:
            yield pa.concat_tables(made)
            made = []
    if made:
        yield pa.concat_tables(made)


class OnSpark:
    """A session of its own on a Spark Connect server that sees the files by the same paths."""

    def __init__(self, url: str) -> None:
        self._url = url

    def each(
        self, function: Each, schema: pa.Schema, files: list[Path], work: Path
    ) -> Iterator[pa.Table]:
        from pyspark.sql.pandas.types import from_arrow_schema

        names = [str(file) for file in files]

        def folded(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in numbers:
                for number in batch.column(0).to_pylist():
                    for table in applied(function, names[number]):
                        yield from table.combine_chunks().to_batches()

        if not files:
            return
        spark = session(self._url, work)
        try:
            tasks = spark.range(0, len(names), 1, len(names))
            tasks.mapInArrow(folded, from_arrow_schema(schema)).write.parquet(str(work / "made"))
        finally:
            spark.stop()
        for file in sorted((work / "made").glob("*.parquet")):
            for batch in pq.ParquetFile(file).iter_batches(TOGETHER):
                yield pa.Table.from_batches([batch]).cast(schema)


def session(url: str, work: Path) -> Any:
    """Of one job, by the name of its folder, which nobody else has."""
    from pyspark.logger import PySparkLogger

    from noetl.spark.child import AFAR, connect

    for name in SAID_TWICE:
        PySparkLogger.getLogger(name).disabled = True
    spark = connect({"url": url, "ours": False}, str(UUID(derive("job", str(work)))))
    for name, value in AFAR.items():  # days begin in UTC, wherever the server is
        spark.conf.set(name, value)
    return spark
