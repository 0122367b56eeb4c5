"""The data source `spark.read.format("noetl").load(…)`: Spark's tasks read a result where it is stored.

The argument of `load` is the name of an input of the step, or the address of a result. A task asks
the worker (`tickets.py`) for a signed URL of the file that it reads. The URL is valid for a while
and for that file only, so no key of the store is in an option, a plan or a closure.

A file is read in parts of a few row groups. Filters skip row groups that cannot match, and remove
rows before they go to the JVM; Spark applies the filters again. Only the columns of the requested
schema are read.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain

import msgspec
import pyarrow as pa
from pyspark.sql import datasource as d
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from noetl.results.formats.rowsets import ParquetReader
from noetl.spark.arrow import convert_batch, convert_schema
from noetl.spark.messages import FileLocation, InputFacts, TicketQuestion
from noetl.spark.step.tickets import ask_ticket
from noetl.spark.tasks.clauses import Clause, Comparison, list_row_ranges, make_clause
from noetl.spark.tasks.remote_file import open_task_file

SOURCE_NAME = "noetl"
MAX_PARTITION_BYTES = 64 << 20  # bytes of a partition in memory
_PARALLEL_FOOTERS = 8  # footers that are read at once
_FILTER_COMPARISONS: dict[type[d.Filter], Comparison] = {
    d.EqualTo: "equal",
    d.GreaterThan: "greater",
    d.GreaterThanOrEqual: "greater_equal",
    d.LessThan: "less",
    d.LessThanOrEqual: "less_equal",
    d.In: "is_in",
}


def make_source_class(ticket: str) -> type[d.DataSource]:
    """The data source class for one session. The ticket is an attribute of the class: Spark sends
    the class as a whole, and shows only options."""
    return type("Noetl", (_Source,), {"ticket": ticket, "__module__": "noetl_session"})


class _Source(d.DataSource):
    ticket = ""

    @classmethod
    def name(cls) -> str:
        return SOURCE_NAME

    def schema(self) -> StructType:
        facts = _ask_input_facts(self.ticket, self.options["path"])
        serialized = bytes.fromhex(facts.schema)
        schema = pa.ipc.read_schema(pa.BufferReader(serialized))
        return from_arrow_schema(convert_schema(schema))

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
        yield from filters  # Spark applies all of them again

    def partitions(self) -> Sequence[d.InputPartition]:
        count = _ask_input_facts(self._ticket, self._name).count
        with ThreadPoolExecutor(_PARALLEL_FOOTERS) as threads:
            slices_by_file = threads.map(self._list_slices, range(count))
            return list(chain.from_iterable(slices_by_file))

    def _list_slices(self, file: int) -> list[FileSlice]:
        reader = self._open_slice_file(file)
        try:
            clauses = _make_clauses(self._filters, reader.schema)
            return [
                FileSlice(file, *rows)
                for rows in list_row_ranges(reader.footer, clauses, MAX_PARTITION_BYTES)
            ]
        finally:
            reader.close()

    def read(self, partition: d.InputPartition) -> Iterator[pa.RecordBatch]:
        if partition.value is None:  # Spark's placeholder when there are no partitions
            return
        file, first, last = partition.value
        reader = self._open_slice_file(file)
        try:
            yield from self._read_slice_batches(reader, first, last)
        finally:
            reader.close()

    def _read_slice_batches(
        self,
        reader: ParquetReader,
        first: int,
        last: int,
    ) -> Iterator[pa.RecordBatch]:
        schema = to_arrow_schema(self._schema, timezone="UTC")
        clauses = _make_clauses(self._filters, reader.schema)
        names = dict.fromkeys((*schema.names, *(predicate.column for predicate in clauses)))
        for batch in reader.batches(first, last, list(names)):
            for predicate in clauses:
                batch = predicate.keep_matching(batch)
            yield convert_batch(batch.select(schema.names), schema)

    def _open_slice_file(self, file: int) -> ParquetReader:
        answer = ask_ticket(self._ticket, TicketQuestion(of=self._name, file=file))
        return open_task_file(msgspec.convert(answer, FileLocation), self._name)


def _ask_input_facts(ticket: str, name: str) -> InputFacts:
    return msgspec.convert(ask_ticket(ticket, TicketQuestion(of=name)), InputFacts)


def _make_clauses(filters: list[d.Filter], schema: pa.Schema) -> list[Clause]:
    """The clauses for the filters on top-level columns; other filters are left to Spark."""
    clauses = []
    for pushed in filters:
        path: tuple[str, ...] = getattr(pushed, "attribute", ())
        compared = _FILTER_COMPARISONS.get(type(pushed))
        if len(path) != 1 or compared is None:
            continue
        values = pushed.value  # type: ignore[attr-defined]  # all filters in _COMPARED have it
        if not isinstance(pushed, d.In):
            values = [values]
        found = make_clause(schema, path[0], compared, values)
        if found is not None:
            clauses.append(found)
    return clauses
