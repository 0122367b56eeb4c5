"""What a query asks of single columns, and which parts of a Parquet file can have rows for it.

A clause may keep too many rows, never too few: Spark looks again. So it is made only where Arrow surely means the same as Spark:
not of floats, which may be NaN.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

Compared = Literal["equal", "greater", "greater_equal", "less", "less_equal", "is_in"]


@dataclass(frozen=True, slots=True)
class Clause:
    column: str
    compared: Compared
    values: pa.Array  # one, but for `is_in`

    def kept(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        column = batch.column(self.column)
        if self.compared == "is_in":
            return batch.filter(pc.is_in(column, self.values))
        return batch.filter(pc.call_function(self.compared, [column, self.values[0]]))

    def may_be_between(self, least: Any, most: Any) -> bool:
        """Of values within these, one may be kept."""
        kind = self.values.type
        bounds = {
            "greater": [most],
            "greater_equal": [most],
            "less": [least],
            "less_equal": [least],
        }
        if (bound := bounds.get(self.compared)) is not None:
            return bool(
                pc.call_function(self.compared, [pa.scalar(bound[0], kind), self.values[0]]).as_py()
            )
        inside = pc.and_(
            pc.greater_equal(self.values, pa.scalar(least, kind)),
            pc.less_equal(self.values, pa.scalar(most, kind)),
        )
        return bool(pc.any(inside).as_py())


def clause(
    schema: pa.Schema, column: str, compared: Compared, values: Sequence[Any]
) -> Clause | None:
    """None: nothing can be said by it."""
    kind = schema.field(column).type if column in schema.names else pa.null()
    types = pa.types
    if not (
        types.is_integer(kind)
        or types.is_string(kind)
        or types.is_date32(kind)
        or types.is_timestamp(kind)
    ):
        return None
    try:
        return Clause(column, compared, pa.array(values, kind))
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return None  # a value that the column cannot have


def parts(footer: Any, clauses: Sequence[Clause], size: int) -> Iterator[tuple[int, int]]:
    """Ranges of rows of about so many bytes, of the row groups that may have a row for all clauses."""
    begin, taken = 0, 0
    first: int | None = None
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        wanted = all(_may_have(group, each) for each in clauses)
        if first is not None and (not wanted or taken + group.total_byte_size > size):
            yield first, begin
            first = None
        if wanted:
            first, taken = (begin, 0) if first is None else (first, taken)
            taken += group.total_byte_size
        begin += group.num_rows
    if first is not None:
        yield first, begin


def _may_have(group: Any, clause: Clause) -> bool:
    for number in range(group.num_columns):
        column = group.column(number)
        if column.path_in_schema != clause.column:
            continue
        told = column.statistics
        return told is None or not told.has_min_max or clause.may_be_between(told.min, told.max)
    return True
