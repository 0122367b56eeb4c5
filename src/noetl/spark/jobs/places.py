"""Where a function of one execution runs: on Spark, grouped by execution, or in this process. The output is the same.

The input are Parquet files with whole executions in each, so that neither has to hold more than one file's worth at once.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol
from uuid import UUID

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from noetl.model.ids import derive
from noetl.spark.jobs.rows import by_execution

Each = Callable[[pa.Table], pa.Table]
TOGETHER = 1_000  # small tables that become one batch


class Runs(Protocol):
    def each(self, function: Each, schema: pa.Schema, files: list[Path], work: Path) -> Iterator[pa.Table]:
        """What `function` makes of every execution, in no order. `work`: a folder for files on the way."""
        ...


class InProcess:
    def each(self, function: Each, schema: pa.Schema, files: list[Path], work: Path) -> Iterator[pa.Table]:
        made: list[pa.Table] = []
        for file in files:
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

    def each(self, function: Each, schema: pa.Schema, files: list[Path], work: Path) -> Iterator[pa.Table]:
        from pyspark.sql.pandas.types import from_arrow_schema

        def grouped(events: pa.Table) -> pa.Table:  # PySpark looks at the types of a plain function
            return function(events)

        if not files:
            return
        spark = session(self._url, work)
        try:
            read = spark.read.parquet(*map(str, files)).groupBy("execution_id")
            made = read.applyInArrow(grouped, from_arrow_schema(schema))
            made.write.parquet(str(work / "made"))
        finally:
            spark.stop()
        for file in sorted((work / "made").glob("*.parquet")):
            for batch in pq.ParquetFile(file).iter_batches(TOGETHER):
                yield pa.Table.from_batches([batch]).cast(schema)


def session(url: str, work: Path) -> Any:
    """Of one job, by the name of its folder, which nobody else has."""
    from noetl.spark.child import connect

    return connect(url, str(UUID(derive("job", str(work)))))
