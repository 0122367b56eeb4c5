"""`spark.read.format("noetl").load(…)`: rows of a result that Spark's tasks read where they are stored.

What is loaded is an input of the step by its name, or a result by its address. The worker says which files that is
(`tickets.py`): a task asks it for the address of the file it reads, which is good for a while and for nothing else, so that no
key of the store is in an option, a plan or a closure. Files are read in parts of a few row groups. Filters leave out groups that
cannot have a row for them, and rows before they go to the JVM; Spark applies them again. Columns are those of the schema that is
asked for.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
from pyspark.sql import datasource as d
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from noetl.results.rowsets import InFile
from noetl.spark.afar import opened
from noetl.spark.arrow import converted, native_schema
from noetl.spark.clauses import Clause, Compared, clause, parts
from noetl.spark.tickets import ask

NAME = "noetl"
PART = 64 << 20  # bytes of a partition, as they are in memory
_TOGETHER = 8
_COMPARED: dict[type[d.Filter], Compared] = {
    d.EqualTo: "equal",
    d.GreaterThan: "greater",
    d.GreaterThanOrEqual: "greater_equal",
    d.LessThan: "less",
    d.LessThanOrEqual: "less_equal",
    d.In: "is_in",
}


def source_with(ticket: str) -> type[d.DataSource]:
    """For one session: the ticket is part of the class, which is sent as a whole, and of nothing that is shown."""
    return type("Noetl", (_Source,), {"ticket": ticket, "__module__": "noetl_session"})


class _Source(d.DataSource):
    ticket = ""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        told = ask(self.ticket, of=self.options["path"])
        return from_arrow_schema(
            native_schema(pa.ipc.read_schema(pa.BufferReader(bytes.fromhex(told["schema"]))))
        )

    def reader(self, schema: StructType) -> d.DataSourceReader:
        return _SliceReader(self.ticket, self.options["path"], schema)


class FileSlice(d.InputPartition):
    """Rows [first, last) of a file."""

    def __init__(self, file: int, first: int, last: int) -> None:
        super().__init__((file, first, last))


class _SliceReader(d.DataSourceReader):
    def __init__(self, ticket: str, name: str, schema: StructType) -> None:
        self._ticket = ticket
        self._name = name
        self._schema = schema
        self._filters: list[d.Filter] = []

    def pushFilters(self, filters: list[d.Filter]) -> Iterator[d.Filter]:
        self._filters = filters
        yield from filters  # Spark looks again: what is left out here is only what cannot count

    def partitions(self) -> Sequence[d.InputPartition]:
        count: int = ask(self._ticket, of=self._name)["count"]
        with ThreadPoolExecutor(_TOGETHER) as threads:
            return [part for parts in threads.map(self._parts, range(count)) for part in parts]

    def _parts(self, file: int) -> list[FileSlice]:
        reader = self._opened(file)
        try:
            clauses = _clauses(self._filters, reader.schema)
            return [FileSlice(file, *rows) for rows in parts(reader.footer, clauses, PART)]
        finally:
            reader.close()

    def read(self, partition: d.InputPartition) -> Iterator[pa.RecordBatch]:
        if partition.value is None:  # there is no part at all
            return
        file, first, last = partition.value
        reader = self._opened(file)
        try:
            yield from self._batches(reader, first, last)
        finally:
            reader.close()

    def _batches(self, reader: InFile, first: int, last: int) -> Iterator[pa.RecordBatch]:
        given = to_arrow_schema(self._schema, timezone="UTC")
        clauses = _clauses(self._filters, reader.schema)
        names = dict.fromkeys((*given.names, *(each.column for each in clauses)))
        for batch in reader.batches(first, last, list(names)):
            for each in clauses:
                batch = each.kept(batch)
            yield converted(batch.select(given.names), given)

    def _opened(self, file: int) -> InFile:
        return opened(ask(self._ticket, of=self._name, file=file), self._name)


def _clauses(filters: list[d.Filter], schema: pa.Schema) -> list[Clause]:
    found = []
    for each in filters:
        path: tuple[str, ...] = getattr(each, "attribute", ())
        if len(path) == 1 and (kind := _COMPARED.get(type(each))) is not None:
            values = each.value if isinstance(each, d.In) else [each.value]  # type: ignore[attr-defined]  # all of these have it
            found.append(clause(schema, path[0], kind, values))
    return [each for each in found if each is not None]
