"""What a sink makes of data: records, texts, names. And what it refuses."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from noetl.tools.sink.records import (
    SINK_BATCH_ROWS,
    SinkColumn,
    SinkError,
    SinkTable,
    read_record_batches,
    split_table_name,
)
from noetl.tools.sink.tool import SinkTool
from tests.unit.tools.calls import call, failure


def take_batches(value: Any) -> list[Any]:
    async def take() -> list[Any]:
        return [batch async for batch in read_record_batches(value)]

    return asyncio.run(take())


class CountedRows:
    """Rows as the store has them."""

    def __init__(self, count: int) -> None:
        self.count = count

    async def batches(self, size: int) -> AsyncIterator[list[Any]]:
        for start in range(0, self.count, size):
            yield [{"n": number} for number in range(start, min(start + size, self.count))]


ROW = {"a": 1}
ANSWER = {"status_code": 200, "headers": {}, "url": "u", "elapsed": 0.1, "data": [ROW]}


@pytest.mark.parametrize(
    ("value", "rows"),
    [
        ([ROW, {"b": 2}], [ROW, {"b": 2}]),
        (ROW, [ROW]),
        (None, []),
        ([], []),
        ({"rows": [ROW], "row_count": 1, "columns": ["a"]}, [ROW]),
        ({"rows": [ROW], "row_count": 1}, [{"rows": [ROW], "row_count": 1}]),
        (ANSWER, [ROW]),
        ({**ANSWER, "data": ROW}, [ROW]),
    ],
)
def test_what_data_stands_for(value: Any, rows: list[Any]) -> None:
    assert [row for batch in take_batches(value) for row in batch] == rows


def test_many_rows_come_in_batches_and_stored_ones_are_not_read_at_once() -> None:
    assert [len(batch) for batch in take_batches([ROW] * (SINK_BATCH_ROWS + 1))] == [
        SINK_BATCH_ROWS,
        1,
    ]
    assert [len(batch) for batch in take_batches(CountedRows(2 * SINK_BATCH_ROWS + 5))] == [
        SINK_BATCH_ROWS,
        SINK_BATCH_ROWS,
        5,
    ]


@pytest.mark.parametrize("value", [5, "text", [ROW, 5], [[ROW]]])
def test_what_is_no_record_is_named(value: Any) -> None:
    with pytest.raises(SinkError, match=r"rows\[[01]\] is a "):
        take_batches(value)


@pytest.mark.parametrize(
    ("column", "value", "text"),
    [
        (SinkColumn("c", "int"), 2**70, str(2**70)),
        (SinkColumn("c", "float8"), 1.5, "1.5"),
        (SinkColumn("c", "text"), True, "true"),
        (SinkColumn("c", "text"), 'it\'s \\ "so"', 'it\'s \\ "so"'),
        (SinkColumn("c", "text"), {"a": [1]}, '{"a":[1]}'),
        (SinkColumn("c", "text"), None, None),
        (SinkColumn("c", "jsonb", "json"), "text", '"text"'),
        (SinkColumn("c", "jsonb", "json"), [1, None], "[1,null]"),
        (SinkColumn("c", "bytea", "bytes"), "/w==", "\\xff"),
        (SinkColumn("c", "bytea", "bytes"), {"$bytes": "/w=="}, "\\xff"),
        (SinkColumn("c", "int[]", array=True), [1, [2, None]], '{"1",{"2",NULL}}'),
        (SinkColumn("c", "text[]", array=True), ['a"b', "c\\d", "e,f"], '{"a\\"b","c\\\\d","e,f"}'),
        (SinkColumn("c", "jsonb[]", "json", array=True), [[1], "x"], '{"[1]","\\"x\\""}'),
    ],
)
def test_values_as_a_database_reads_them(column: SinkColumn, value: Any, text: str | None) -> None:
    assert column.format_value(value) == text


def test_a_table_knows_its_columns_and_its_key() -> None:
    table = SinkTable("t", {name: SinkColumn(name, "text") for name in ("a", "b")})
    assert [column.name for column in table.find_columns([{"b": 1}, {"a": 2}], 0, ())] == ["b", "a"]
    with pytest.raises(SinkError, match=r"t has no column 'c', which rows\[11\] has; it has a, b"):
        table.find_columns([{"a": 1}, {"c": 2}], 10, ())
    with pytest.raises(
        SinkError, match=r"rows\[1\] has no value for 'a', which is part of the key"
    ):
        table.find_columns([{"a": 1}, {"a": None}], 0, ["a"])
    with pytest.raises(SinkError, match=r"rows\[0\] is an empty map"):
        table.find_columns([{}], 0, ())
    with pytest.raises(SinkError, match=r"t\.a: rows\[3\] holds the character zero"):
        table.format_rows([{"a": "\0"}], [table.columns["a"]], 3)


@pytest.mark.parametrize(
    ("written", "parts"),
    [
        ("t", ["t"]),
        ("s.t", ["s", "t"]),
        ('s."a.b""c"', ["s", 'a.b"c']),
        ("Order Lines", ["Order Lines"]),
    ],
)
def test_names_of_tables(written: str, parts: list[str]) -> None:
    assert split_table_name(written) == parts


@pytest.mark.parametrize(
    ("target", "code"),
    [
        ({"kind": "mongo"}, "SINK_KIND"),
        ({"kind": "file"}, "SINK_TARGET"),
        ({"kind": "file", "path": "x", "format": "xls"}, "SINK_TARGET"),
        ({"kind": "file", "path": "x", "mode": "upsert", "key": ["a"]}, "SINK_TARGET"),
        ({"kind": "file", "path": "out/", "mode": "replace"}, "SINK_TARGET"),
        ({"kind": "http", "url": "http://x", "mode": "replace"}, "SINK_TARGET"),
        ({"kind": "duckdb", "table": "t"}, "SINK_TARGET"),
        ({"kind": "duckdb", "table": 5}, "SINK_TARGET"),
    ],
)
def test_targets_that_make_no_sense(target: dict[str, Any], code: str) -> None:
    tool = SinkTool(lambda: None, lambda: None)  # type: ignore[arg-type, return-value]  # neither is asked for
    assert failure(asyncio.run(tool.run(call({"target": target, "data": [ROW]})))).code == code
