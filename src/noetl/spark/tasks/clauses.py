"""Conditions on single columns, and the row groups of a Parquet file that can match them.

A clause may keep too many rows, because Spark filters again, but never too few. So it exists only
for types that Arrow and Spark compare in the same way: not for floats, which may be NaN.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

Comparison = Literal["equal", "greater", "greater_equal", "less", "less_equal", "is_in"]


@dataclass(frozen=True, slots=True)
class Clause:
    column: str
    comparison: Comparison
    values: pa.Array  # one value, or several for `is_in`

    def keep_matching(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of the batch that match."""
        column = batch.column(self.column)
        if self.comparison == "is_in":
            return batch.filter(pc.is_in(column, self.values))
        is_match = pc.call_function(self.comparison, [column, self.values[0]])
        return batch.filter(is_match)

    def may_match_between(self, least: Any, most: Any) -> bool:
        """Whether a value between `least` and `most` can match."""
        kind = self.values.type
        if self.comparison in ("greater", "greater_equal"):
            return self._matches_value(pa.scalar(most, kind))
        if self.comparison in ("less", "less_equal"):
            return self._matches_value(pa.scalar(least, kind))
        is_above = pc.greater_equal(self.values, pa.scalar(least, kind))
        is_below = pc.less_equal(self.values, pa.scalar(most, kind))
        return bool(pc.any(pc.and_(is_above, is_below)).as_py())

    def _matches_value(self, value: pa.Scalar) -> bool:
        matches = pc.call_function(self.comparison, [value, self.values[0]])
        return bool(matches.as_py())


def make_clause(
    schema: pa.Schema,
    column: str,
    compared: Comparison,
    values: Sequence[Any],
) -> Clause | None:
    """The clause for a comparison, or None if Arrow cannot decide it as Spark does."""
    if column not in schema.names:
        return None
    kind = schema.field(column).type
    if not _is_comparable(kind):
        return None
    try:
        return Clause(column, compared, pa.array(values, kind))
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return None  # a value that the column cannot have


def _is_comparable(kind: pa.DataType) -> bool:
    if pa.types.is_integer(kind) or pa.types.is_string(kind):
        return True
    return bool(pa.types.is_date32(kind) or pa.types.is_timestamp(kind))


def list_row_ranges(
    footer: Any,
    clauses: Sequence[Clause],
    size: int,
) -> Iterator[tuple[int, int]]:
    """Row ranges of about `size` bytes, over the row groups that can match all clauses."""
    position, range_bytes = 0, 0
    first: int | None = None  # the first row of the current range
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        matches = all(_may_have_match(group, clause) for clause in clauses)
        is_full = range_bytes + group.total_byte_size > size
        if first is not None and (not matches or is_full):
            yield first, position
            first = None
        if matches:
            if first is None:
                first, range_bytes = position, 0
            range_bytes += group.total_byte_size
        position += group.num_rows
    if first is not None:
        yield first, position


def _may_have_match(group: Any, clause: Clause) -> bool:
    """Whether a row group can hold a row that matches, by the statistics of its column."""
    for number in range(group.num_columns):
        column = group.column(number)
        if column.path_in_schema != clause.column:
            continue
        statistics = column.statistics
        if statistics is None or not statistics.has_min_max:
            return True
        return clause.may_match_between(statistics.min, statistics.max)
    return True
