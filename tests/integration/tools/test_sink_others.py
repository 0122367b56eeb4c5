"""Sinks into DuckDB files, files and HTTP addresses: once, whole or not at all."""

import csv
import json
from collections.abc import AsyncIterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest

from noetl.tools.port import Outcome
from noetl.tools.sink.records import SINK_BATCH_ROWS
from tests.api.process import Api
from tests.integration.tools import sinks
from tests.unit.tools.calls import failure, value

MANY = 2 * SINK_BATCH_ROWS + 7
REPEATED = {"row_count": 0, "repeated": True}


def records(count: int) -> list[dict[str, Any]]:
    return [{"a": number, "b": f"row {number}"} for number in range(count)]


# ---- duckdb ------------------------------------------------------------------------------------------------------------


class DuckDBTable:
    def __init__(self, file: Path) -> None:
        self.file = str(file)

    def do(self, statement: str) -> list[Any]:
        with duckdb.connect(self.file) as connection:
            return connection.execute(statement).fetchall()

    def sink(self, data: Any, again: str = "k", **target: Any) -> Outcome:
        return sinks.outcome(
            {"kind": "duckdb", "table": "t", "database": self.file, **target}, data, again
        )


@pytest.fixture
def sink_table(tmp_path: Path) -> DuckDBTable:
    made = DuckDBTable(tmp_path / "d.duckdb")
    made.do("CREATE TABLE t (a int PRIMARY KEY, b varchar)")
    return made


@pytest.mark.parametrize("count", [1, MANY])
@pytest.mark.parametrize("mode", ["insert", "staged"])
def test_rows_are_added_to_a_duckdb_file_once(
    sink_table: DuckDBTable, mode: str, count: int
) -> None:
    assert value(sink_table.sink(records(count), mode=mode)) == {"row_count": count}
    assert value(sink_table.sink(records(count), mode=mode)) == REPEATED
    assert sink_table.do("FROM t ORDER BY a") == [tuple(row.values()) for row in records(count)]
    found = failure(sink_table.sink(records(1), "other", mode=mode))
    assert (found.code, found.kind) == ("SQL_ERROR", "constraint")


@pytest.mark.parametrize("count", [3, MANY])
def test_rows_of_a_duckdb_file_are_replaced_by_key_and_as_a_whole(
    sink_table: DuckDBTable, count: int
) -> None:
    sink_table.do("INSERT INTO t VALUES (0, 'old'), (-1, 'other')")
    data = [*records(count), {"a": 1, "b": "last"}]
    for _ in range(2):
        value(sink_table.sink(data, mode="upsert", key=["a"]))
    assert sink_table.do("SELECT b FROM t WHERE a IN (-1, 0, 1) ORDER BY a") == [
        ("other",),
        ("row 0",),
        ("last",),
    ]
    for _ in range(2):
        assert value(sink_table.sink(records(count), mode="replace")) == {"row_count": count}
    assert sink_table.do("FROM t ORDER BY a") == [tuple(row.values()) for row in records(count)]


def test_values_become_the_types_of_a_duckdb_table(sink_table: DuckDBTable) -> None:
    sink_table.do(
        "CREATE TABLE x (d date, z timestamp, j json, l int[], s struct(k int), m map(varchar, int), y blob, h hugeint)"
    )
    row = {
        "d": "2030-01-02", "z": "2030-01-02T03:04:05", "j": {"k": [1]}, "l": [1, None], "s": {"k": 1}, "m": {"a": 1}, "y": "/w==",
        "h": 2**100,
    }  # fmt: skip
    value(sink_table.sink([row, {"d": None}], table="x"))
    shown = "d::varchar, z::varchar, j, l, s, m, y, h"
    first, nothing = sink_table.do(f"SELECT {shown} FROM x ORDER BY d NULLS LAST")
    assert first == (
        "2030-01-02", "2030-01-02 03:04:05", '{"k":[1]}', [1, None], {"k": 1}, {"a": 1}, b"\xff", 2**100
    )  # fmt: skip
    assert nothing == (None,) * 8


def test_what_is_wrong_with_a_duckdb_target_is_named(sink_table: DuckDBTable) -> None:
    found = failure(sink_table.sink([{"a": 1}, {"a": "x"}]))
    assert (found.code, found.detail["row"], found.detail["column"]) == ("SINK_VALUE", 1, "a")
    assert failure(sink_table.sink({"c": 1})).code == "SINK_COLUMN"
    assert failure(sink_table.sink({"a": 1}, table="nowhere")).code == "SINK_TABLE"
    assert failure(sink_table.sink({"a": 1}, mode="upsert", key=["z"])).code == "SINK_COLUMN"
    assert sink_table.do("FROM t") == []
    assert value(sink_table.sink({"a": 1})) == {"row_count": 1}


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        ("int", 1.5), ("int", "1.5"), ("bigint", "9007199254740993.5"), ("utinyint", 0.1), ("int[]", [1, 1.5]),
        ("struct(k int)", {"k": 1.5}), ("map(varchar, smallint)", {"a": 2.7}), ("int[][]", [[1], [1.5]]),
        ("boolean", 5), ("boolean[]", [5]), ("boolean[2]", [1, 0.5]),
    ],
)  # fmt: skip
def test_duckdb_sink_refuses_a_number_that_its_column_would_change(
    sink_table: DuckDBTable, kind: str, given: Any
) -> None:
    sink_table.do(f"CREATE TABLE x (id int, v {kind})")
    found = failure(sink_table.sink([{"id": 1}, {"id": 2, "v": given}], table="x"))
    assert (found.code, found.detail["row"], found.detail["column"]) == ("SINK_VALUE", 1, "v")
    assert sink_table.do("FROM x") == []


def test_duckdb_sink_stores_whole_numbers_however_they_are_written(sink_table: DuckDBTable) -> None:
    sink_table.do("CREATE TABLE x (i int, l int[], b boolean, d decimal(4, 2))")
    value(
        sink_table.sink(
            [{"i": 2.0, "l": [3.0, 4], "b": 1, "d": 1.5}, {"i": "7", "b": "false"}], table="x"
        )
    )
    assert sink_table.do("FROM x ORDER BY i") == [
        (2, [3, 4], True, Decimal("1.50")),
        (7, None, False, None),
    ]


# ---- files -------------------------------------------------------------------------------------------------------------


def read_rows(path: Path) -> list[Any]:
    match path.suffix:
        case ".jsonl":
            return [json.loads(line) for line in path.read_text().splitlines()]
        case ".json":
            found: list[Any] = json.loads(path.read_text())
            return found
        case ".csv":
            with path.open(newline="") as file:
                return [{"a": int(row["a"]), "b": row["b"]} for row in csv.DictReader(file)]
        case _:
            rows: list[Any] = pq.read_table(path).to_pylist()
            return rows


@pytest.mark.parametrize("count", [1, MANY])
@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".csv", ".parquet"])
def test_a_file_is_named_by_its_key_and_written_once(
    tmp_path: Path, suffix: str, count: int
) -> None:
    target = {"kind": "file", "path": str(tmp_path / "out" / f"orders{suffix}")}
    made = tmp_path / "out" / f"orders-k{suffix}"
    assert value(sinks.outcome(target, records(count))) == {"row_count": count, "path": str(made)}
    assert value(sinks.outcome(target, records(count))) == {**REPEATED, "path": str(made)}
    value(sinks.outcome(target, records(2), "other"))
    assert read_rows(made) == records(count)
    assert sorted(path.name for path in made.parent.iterdir()) == [
        f"orders-k{suffix}",
        f"orders-other{suffix}",
    ]


def test_a_folder_takes_files_and_replace_takes_the_name_as_it_is(tmp_path: Path) -> None:
    folder = {"kind": "file", "path": f"{tmp_path}/out", "format": "csv"}
    assert (
        value(sinks.outcome(folder, {"a": 1, "b": {"c": 'x"y'}}))["path"] == f"{tmp_path}/out/k.csv"
    )
    assert (tmp_path / "out" / "k.csv").read_text().splitlines() == [
        "a,b",
        '1,"{""c"":""x\\""y""}"',
    ]
    whole = {"kind": "file", "path": str(tmp_path / "all.json"), "mode": "replace"}
    for data in (records(3), records(2), None):
        value(sinks.outcome(whole, data))
    assert read_rows(tmp_path / "all.json") == []


def test_a_file_that_fails_is_not_there(tmp_path: Path) -> None:
    class Failing:
        async def batches(self, size: int) -> AsyncIterator[list[Any]]:
            yield records(3)
            yield [5]

    target = {"kind": "file", "path": str(tmp_path / "x.jsonl")}
    assert failure(sinks.outcome(target, Failing())).code == "SINK_DATA"
    assert (
        failure(
            sinks.outcome({**target, "path": str(tmp_path / "x.parquet")}, [{"a": 1}, {"a": "x"}])
        ).code
        == "SINK_VALUE"
    )
    late = [*records(SINK_BATCH_ROWS), {"new": 1}]
    assert (
        failure(sinks.outcome({**target, "path": str(tmp_path / "x.csv")}, late)).detail["row"]
        == SINK_BATCH_ROWS
    )
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    assert (
        failure(
            sinks.outcome({**target, "path": str(tmp_path / "file" / "x.csv")}, records(1))
        ).code
        == "SINK_FILE"
    )


def test_parquet_has_types_that_fit_every_batch(tmp_path: Path) -> None:
    rows = [{"a": number, "b": None, "c": [number]} for number in range(SINK_BATCH_ROWS)]
    late = [*rows, {"a": 0.5, "b": "x", "c": {"d": 1}, "e": 1}]
    target = {"kind": "file", "path": str(tmp_path / "x.parquet"), "mode": "replace"}
    assert value(sinks.outcome(target, late))["row_count"] == SINK_BATCH_ROWS + 1
    found = pq.read_table(tmp_path / "x.parquet")
    assert [str(kind) for kind in found.schema.types] == [
        "double",
        "string",
        "extension<arrow.json>",
        "int64",
    ]
    assert found.slice(SINK_BATCH_ROWS - 1).to_pylist() == [
        {"a": SINK_BATCH_ROWS - 1, "b": None, "c": f"[{SINK_BATCH_ROWS - 1}]", "e": None},
        {"a": 0.5, "b": "x", "c": '{"d":1}', "e": 1},
    ]
    mixed = failure(sinks.outcome(target, [*rows, {"a": "x"}]))
    assert (mixed.code, mixed.detail) == ("SINK_VALUE", {"column": "a", "row": SINK_BATCH_ROWS})
    assert "'a'" in mixed.message
    large = failure(
        sinks.outcome(
            target,
            [
                *records(SINK_BATCH_ROWS),
                {"a": 0.5},
                *({"a": 2**60 + 1} for _ in range(SINK_BATCH_ROWS)),
            ],
        )
    )
    assert (large.code, large.detail) == ("SINK_VALUE", {"column": "a", "row": SINK_BATCH_ROWS})
    assert failure(sinks.outcome(target, [])).code == "SINK_DATA"
    assert [path.name for path in tmp_path.iterdir()] == ["x.parquet"]


# ---- http --------------------------------------------------------------------------------------------------------------


def test_what_is_sent_says_which_one_it_is(api: Api) -> None:
    target = {"kind": "http", "url": f"{api.url}/api/v1/inbox/once", "headers": {"x": "y"}}
    for _ in range(2):
        assert value(sinks.outcome(target, {"a": 1})) == {"row_count": 1, "requests": 1}
    assert value(sinks.outcome({**target, "method": "PUT"}, records(MANY), "many")) == {
        "row_count": MANY,
        "requests": 3,
    }
    found = api.get("/api/v1/inbox/once")
    assert found["keys"] == ["k", "k", "many", "many-1", "many-2"]
    assert [found["taken"][0], *(row for part in found["taken"][1:] for row in part)] == [
        {"a": 1},
        *records(MANY),
    ]


def test_an_address_that_refuses_is_a_failure(api: Api) -> None:
    found = failure(
        sinks.outcome({"kind": "http", "url": f"{api.url}/hosts/httpbin/status/503"}, {"a": 1})
    )
    assert (found.code, found.retryable) == ("HTTP_503", True)
