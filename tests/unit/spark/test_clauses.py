"""Which parts of a file can have rows for a query."""

from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from noetl.spark.tasks.clauses import list_row_ranges, make_clause

DAY = datetime(2026, 1, 1, tzinfo=UTC)
ROWS = pa.table({
    "n": pa.array(range(100), pa.int64()),
    "text": [f"t{n:02}" for n in range(100)],
    "at": pa.array([DAY.replace(minute=n % 60, hour=n // 60) for n in range(100)], pa.timestamp("us", "UTC")),
    "day": pa.array([date(2026, 1, 1 + n // 10) for n in range(100)]),
    "x": [float(n) for n in range(100)],
    "maybe": pa.array([None if n < 50 else n for n in range(100)], pa.int32()),
})  # fmt: skip


@pytest.fixture
def footer(tmp_path: Path) -> Any:
    pq.write_table(ROWS, tmp_path / "a.parquet", row_group_size=10)
    return pq.read_metadata(tmp_path / "a.parquet")


@pytest.mark.parametrize(
    ("column", "compared", "values", "expected"),
    [
        ("n", "equal", [35], [(30, 40)]),
        ("n", "greater", [79], [(80, 100)]),
        ("n", "greater", [78], [(70, 100)]),
        ("n", "greater_equal", [79], [(70, 100)]),
        ("n", "less", [10], [(0, 10)]),
        ("n", "less_equal", [10], [(0, 20)]),
        ("n", "is_in", [5, 95, 1000], [(0, 10), (90, 100)]),
        ("n", "equal", [1000], []),
        ("text", "equal", ["t42"], [(40, 50)]),
        ("at", "less", [DAY.replace(minute=10)], [(0, 10)]),
        ("day", "equal", [date(2026, 1, 3)], [(20, 30)]),
        ("maybe", "less", [60], [(0, 60)]),  # where all are null, nothing is known
    ],
)
def test_groups_that_cannot_have_a_row_are_left_out(
    footer: Any, column: str, compared: Any, values: list[Any], expected: list[tuple[int, int]]
) -> None:
    made = make_clause(ROWS.schema, column, compared, values)
    assert made is not None
    assert list(list_row_ranges(footer, [made], 1 << 30)) == expected
    kept = [
        row[column] for batch in ROWS.to_batches() for row in made.keep_matching(batch).to_pylist()
    ]
    inside = [
        row[column]
        for first, last in expected
        for row in ROWS.slice(first, last - first).to_pylist()
    ]
    assert set(kept) <= set(inside)


@pytest.mark.parametrize(
    ("column", "values"),
    [("x", [1.0]), ("gone", [1]), ("n", ["text"]), ("n", [1 << 80]), ("maybe", [1 << 40])],
)
def test_nothing_is_said_where_spark_may_mean_something_else(
    column: str, values: list[Any]
) -> None:
    assert make_clause(ROWS.schema, column, "equal", values) is None


def test_parts_are_of_about_one_size_and_cover_everything(footer: Any) -> None:
    group = footer.row_group(0).total_byte_size
    found = list(list_row_ranges(footer, [], 3 * group + group // 2))
    assert found[0] == (0, 30)
    assert [first for first, _ in found[1:]] == [last for _, last in found[:-1]]
    assert found[-1][1] == 100
    assert list(list_row_ranges(footer, [], 1)) == [(n, n + 10) for n in range(0, 100, 10)]
