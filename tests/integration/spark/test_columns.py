"""Rows that are added to files have the columns of these files: in another order they are put in order, others are refused."""

import csv
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from noetl.tools.port import Success
from tests.integration.spark.conftest import Runner
from tests.spark import ELSEWHERE

FIRST = "select 1 as id, 'x' as v"
SWAPPED = "select 'y' as v, 2 as id"
BOTH = [{"id": 1, "v": "x"}, {"id": 2, "v": "y"}]
FORMATS = ("parquet", "orc", "csv", "json")
everywhere = pytest.mark.parametrize("before", ["", ELSEWHERE], ids=["here", "elsewhere"])


def _write(spark: Runner, path: str, sql: str, format: str = "parquet", **more: Any) -> Any:
    output = {"path": path, "format": format, "mode": "append", **more}
    return spark({"sql": sql, "output": output})


def _get_refusal(spark: Runner, path: str, sql: str, format: str = "parquet", **more: Any) -> str:
    output = {"path": path, "format": format, "mode": "append", **more}
    failure = spark.failure({"sql": sql, "output": output})
    assert (failure.code, failure.kind, failure.retryable) == ("SPARK_CONFIG", "config", False), (
        failure
    )
    return str(failure.message)


def _rows(
    spark: Runner, path: str, format: str = "parquet", **options: Any
) -> list[dict[str, Any]]:
    options = {"header": True, "inferSchema": True} | options if format == "csv" else options
    config = {
        "inputs": {"p": {"path": path, "format": format, "options": options}},
        "sql": "select id, v from p order by id",
    }
    return spark.rows(config)


@everywhere
@pytest.mark.parametrize("format", FORMATS)
def test_columns_in_another_order_are_put_in_order(
    spark: Runner, tmp_path: Path, format: str, before: str
) -> None:
    path = f"{before}{tmp_path}/lake"
    for sql in (FIRST, SWAPPED):
        outcome = _write(spark, path, sql, format)
        assert isinstance(outcome, Success), outcome
    assert _rows(spark, path, format) == BOTH


def test_csv_that_others_wrote_is_asked_for_its_header(spark: Runner, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    lake.mkdir()
    (lake / "part-0.csv").write_text("id,v\n1,x\n")
    assert isinstance(_write(spark, str(lake), SWAPPED, "csv"), Success)
    assert _rows(spark, str(lake), "csv") == BOTH
    headers = {tuple(next(csv.reader(file.open()))) for file in lake.glob("*.csv")}
    assert headers == {("id", "v")}


@pytest.mark.parametrize(
    ("format", "place"),
    [*[(each, "") for each in FORMATS], ("parquet", ELSEWHERE), ("csv", ELSEWHERE)],
)
def test_other_columns_are_refused_by_name(
    spark: Runner, tmp_path: Path, format: str, place: str
) -> None:
    path = f"{place}{tmp_path}/lake"
    _write(spark, path, FIRST, format)
    said = _get_refusal(spark, path, "select 2 as id, 'y' as w", format)
    assert said == (
        f"output: {path} has the columns id, v, and this step does not: it lacks v; it adds w. Change the step's columns, "
        "write to another path, or replace what is there (mode: overwrite)"
    )
    assert _rows(spark, path, format) == BOTH[:1]


@pytest.mark.parametrize(
    ("format", "place"), [("parquet", ""), ("orc", ""), ("json", ""), ("parquet", ELSEWHERE)]
)
def test_other_types_are_refused_by_name(
    spark: Runner, tmp_path: Path, format: str, place: str
) -> None:
    path = f"{place}{tmp_path}/lake"
    _write(spark, path, FIRST, format)
    said = _get_refusal(spark, path, "select 'two' as id, 5 as v", format)
    assert "id is int there and string here; v is string there and int here. Cast them, or " in said
    assert _rows(spark, path, format) == BOTH[:1]


def test_narrower_types_are_stored_as_those_that_are_there(spark: Runner, tmp_path: Path) -> None:
    path = f"{tmp_path}/lake"
    first = "select 1L as id, 1.5D as v, cast(1 as decimal(12,2)) as amount, array(1L) as list"
    second = "select 2 as ID, cast(null as void) as v, 2 as amount, array(2) as list"
    assert isinstance(_write(spark, path, first), Success)
    said = _get_refusal(spark, path, f"select id, v, amount + 0.001 as amount, list from ({first})")
    assert "amount is decimal(12,2) there" in said
    outcome = _write(spark, path, second)
    assert isinstance(outcome, Success), outcome
    (added,) = [
        table
        for table in map(pq.read_table, Path(path).glob("*.parquet"))
        if table["id"][0].as_py() == 2
    ]
    assert added.schema.names == ["id", "v", "amount", "list"]
    assert added.schema.types[:3] == [pa.int64(), pa.float64(), pa.decimal128(12, 2)]
    assert added.schema.field("list").type.value_type == pa.int64()
    assert added.to_pylist() == [{"id": 2, "v": None, "amount": Decimal("2.00"), "list": [2]}]


@everywhere
@pytest.mark.parametrize("format", ["parquet", "csv"])
@pytest.mark.parametrize("mode", ["append", "overwrite_partitions"])
def test_columns_of_partitions_are_compared_too(
    spark: Runner, tmp_path: Path, format: str, mode: str, before: str
) -> None:
    path = f"{before}{tmp_path}/lake"
    more = {"mode": mode, "partition_by": ["day"]}
    assert isinstance(
        _write(spark, path, "select '01' as day, 1 as id, 'x' as v", format, **more), Success
    )
    assert isinstance(
        _write(spark, path, "select 'y' as v, 2 as day, 2 as id", format, **more), Success
    )
    assert _rows(spark, path, format) == BOTH
    assert "it lacks v" in _get_refusal(spark, path, "select '03' as day, 3 as id", format, **more)
    assert "is partitioned by day" in _get_refusal(spark, path, "select 3 as id, 'z' as v", format)
    assert _rows(spark, path, format) == BOTH


def test_folders_without_data_take_any_columns(spark: Runner, tmp_path: Path) -> None:
    for number, place in enumerate(("", ELSEWHERE)):
        lake = tmp_path / f"lake{number}"
        lake.mkdir()
        (lake / "_SUCCESS").touch()
        assert isinstance(_write(spark, f"{place}{lake}", FIRST), Success)
    for file in (tmp_path / "lake0").glob("*.parquet"):
        file.unlink()
    assert isinstance(_write(spark, f"{tmp_path}/lake0", "select 1 as other"), Success)


def test_overwrite_takes_any_columns(spark: Runner, tmp_path: Path) -> None:
    path = f"{tmp_path}/lake"
    _write(spark, path, FIRST, "json")
    assert isinstance(_write(spark, path, "select 5 as w", "json", mode="overwrite"), Success)
    assert "it lacks w; it adds id, v" in _get_refusal(spark, path, FIRST, "json")


def test_json_columns_without_values_are_known_from_the_commit(
    spark: Runner, tmp_path: Path
) -> None:
    path = f"{tmp_path}/lake"
    _write(spark, path, "select 1 as id, cast(null as string) as v", "json")
    assert isinstance(_write(spark, path, SWAPPED, "json"), Success)
    assert _rows(spark, path, "json") == [{"id": 1, "v": None}, {"id": 2, "v": "y"}]


def test_csv_without_a_header_keeps_its_order(spark: Runner, tmp_path: Path) -> None:
    path, bare = f"{tmp_path}/lake", {"options": {"header": False}}
    _write(spark, path, FIRST, "csv", **bare)
    assert isinstance(_write(spark, path, SWAPPED, "csv", **bare), Success)
    texts = sorted(file.read_text() for file in Path(path).glob("*.csv"))
    assert texts == ["1,x\n", "2,y\n"]
    assert "has 2 columns, and this step gives 3" in _get_refusal(
        spark, path, "select 3 as id, 'z' as v, 1 as w", "csv", **bare
    )


def test_csv_with_a_header_takes_no_files_without_one(spark: Runner, tmp_path: Path) -> None:
    path = f"{tmp_path}/lake"
    _write(spark, path, FIRST, "csv")
    said = _get_refusal(spark, path, SWAPPED, "csv", options={"header": False})
    assert "have a header, and this step writes none" in said


def test_types_of_files_that_others_wrote_are_taken_from_their_footer(
    spark: Runner, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    lake.mkdir()
    pq.write_table(
        pa.table({"id": pa.array([1], pa.int64()), "v": pa.array(["x"])}), lake / "mine.parquet"
    )
    assert isinstance(_write(spark, str(lake), SWAPPED), Success)
    assert _rows(spark, str(lake)) == BOTH


@pytest.mark.parametrize(
    ("columns", "said"),
    [("'w': [1], 'id': [1]", "it lacks w"), ("'v': [1], 'id': [1]", "another step has written to")],
)
def test_columns_that_come_while_rows_are_computed_are_seen(
    spark: Runner, tmp_path: Path, columns: str, said: str
) -> None:
    """The folder is empty when the step begins; a task of it stands for another step that commits first."""
    other = tmp_path / "lake" / "part-00000-other.parquet"
    code = f"""
def put(batches):
    import pyarrow as pa, pyarrow.parquet as pq
    pq.write_table(pa.table({{{columns}}}), "{other}")
    yield from batches

result = spark.range(1).selectExpr("id", "id as v").mapInArrow(put, "id long, v long")
"""
    failure = spark.failure({"code": code, "output": {"path": str(other.parent), "mode": "append"}})
    assert failure.code == "SPARK_CONFIG", failure
    assert said in failure.message
    assert [path.name for path in other.parent.glob("*.parquet")] == [other.name]
