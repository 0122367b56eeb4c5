"""What stands at the place of an output before and after a step: every mode, every kind of place, every way to end.

The first rows are those of another call; the step writes to partition `b`, which is there, and to `c`, which is not.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from noetl.tools.port import Failed, Success
from tests.integration.spark.conftest import Runner, identity
from tests.postgres import server
from tests.spark import ELSEWHERE

Rows = list[tuple[int, str]]
OLD: Rows = [(1, "a"), (2, "b")]
NEW: Rows = [(10, "b"), (11, "c")]
BOTH: Rows = sorted(OLD + NEW)
MERGED: Rows = [(1, "a"), (10, "b"), (11, "c")]
SQL = {
    "rows": "select 10 as n, 'b' as day union all select 11, 'c'",
    "empty": "select 10 as n, 'b' as day where 1 = 0",
    "fails": "select if(id = 1, raise_error('half-way'), 10 + cast(id as int)) as n, if(id = 0, 'b', 'c') as day "
    "from range(0, 2, 1, 2)",
}
EXPECT = [{"name": "small", "sql": "n < 11"}]


@dataclass(frozen=True)
class WritePlace:
    """Where rows are written, how to look at them, and how to put the first rows there without Spark."""

    output: dict[str, Any]
    look: Callable[[], Rows]
    fill: Callable[[], None]

    def write(self, spark: Runner, sql: str, mode: dict[str, Any], **more: Any) -> Any:
        expect = more.pop("expect", [])
        return spark({"sql": sql, "output": {**self.output, **mode}, "expect": expect}, **more)


def _fill_folder(folder: Path, *, partitioned: bool = True) -> None:
    """The rows of `OLD`, one file each, named as Spark names its files."""
    for number, day in OLD:
        parent = folder / f"day={day}" if partitioned else folder
        parent.mkdir(parents=True, exist_ok=True)
        columns = {"n": pa.array([number], pa.int32())} | (
            {} if partitioned else {"day": pa.array([day])}
        )
        pq.write_table(pa.table(columns), parent / f"part-{number:05}-{uuid4()}.snappy.parquet")


def _rows_of(folder: Path) -> Rows:
    if not folder.exists():
        return []
    found = ds.dataset(folder, format="parquet", partitioning="hive").to_table().to_pylist()
    return sorted((row["n"], row["day"]) for row in found)


@pytest.fixture(scope="module")
def dsn() -> Iterator[str]:
    with server().database() as address:
        yield address


def _place(kind: str, tmp_path: Path, dsn: str) -> WritePlace:
    if kind == "table":
        name = f"t{uuid4().hex}"
        output = {"kind": "postgres", "auth": {"dsn": dsn}, "table": name}
        return WritePlace(output, lambda: _rows_of_table(dsn, name), lambda: _fill_table(dsn, name))
    folder = tmp_path / "lake"
    before = ELSEWHERE if "elsewhere" in kind else ""
    partitioned = "partitioned" in kind
    names = {"partition_by": ["day"]} if partitioned else {}
    fill = partial(_fill_folder, folder, partitioned=partitioned)
    return WritePlace({"path": f"{before}{folder}", **names}, lambda: _rows_of(folder), fill)


def _fill_table(dsn: str, name: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f"create table if not exists {name} (n integer, day text)")
        connection.cursor().executemany(f"insert into {name} values (%s, %s)", OLD)


def _rows_of_table(dsn: str, name: str) -> Rows:
    with psycopg.connect(dsn, autocommit=True) as connection:
        if connection.execute("select to_regclass(%s)", [name]).fetchone() == (None,):
            return []
        return [
            (int(n), str(day))
            for n, day in connection.execute(f"select n, day from {name} order by n").fetchall()
        ]  # type: ignore[arg-type]


@dataclass(frozen=True)
class Mode:
    """What there is after a step that writes `NEW`, and after one that writes nothing; what else the mode needs."""

    after: Rows
    empty: Rows
    needs: dict[str, Any]
    fails: bool = False  # where there are rows


MODES = {
    "append": Mode(BOTH, OLD, {}),
    "overwrite": Mode(NEW, [], {}),
    "error": Mode(OLD, OLD, {}, fails=True),
    "ignore": Mode(OLD, OLD, {}),
    "upsert": Mode(MERGED, OLD, {"key": ["day"]}),
    "overwrite_partitions": Mode(MERGED, OLD, {"partition_by": ["day"]}),
}


PATHS = ("path", "path elsewhere")
PARTITIONED = ("partitioned path", "partitioned path elsewhere")
CELLS = [
    *[
        (place, mode)
        for place in (*PATHS, *PARTITIONED)
        for mode in ("append", "overwrite", "error", "ignore")
    ],
    *[(place, "overwrite_partitions") for place in PARTITIONED],
    *[("table", mode) for mode in MODES],
]
# Spark copies rows to a place elsewhere after the mode is decided: the suite runs each way to copy, the rest is long.
LONG = [
    *[("path elsewhere", mode) for mode in ("error", "ignore")],
    *[("partitioned path elsewhere", mode) for mode in ("overwrite", "error", "ignore")],
]


def _cell(place: str, mode: str) -> Any:
    marks = [pytest.mark.long] if (place, mode) in LONG else []
    return pytest.param(place, mode, id=f"{mode}-{place}", marks=marks)


cells = pytest.mark.parametrize(
    ("place", "mode"), [_cell(*cell) for cell in CELLS], indirect=["place"]
)


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path, dsn: str) -> WritePlace:
    return _place(request.param, tmp_path, dsn)


@cells
def test_what_there_is_after_a_step(spark: Runner, place: WritePlace, mode: str) -> None:
    """The cells of one place and one mode, one after the other; each failure leaves what was there."""
    expected = MODES[mode]
    said = {"mode": mode, **expected.needs}
    if mode == "upsert":  # that the key is unique is known before there are rows
        place.write(spark, SQL["empty"], said)
    place.fill()

    unread = (
        mode == "ignore" and "path" in place.output
    )  # there is nothing to compute where there are rows
    failed = place.write(spark, SQL["fails"], said)
    assert isinstance(failed, Success) == unread, failed
    assert place.look() == OLD, "the job failed half-way"

    unmet = place.write(spark, SQL["rows"], said, expect=EXPECT)
    assert isinstance(unmet, Success) == unread, unmet
    assert place.look() == OLD, "a check was not met"

    call = {"key": uuid4().hex}
    outcome = place.write(spark, SQL["rows"], said, **call)
    assert isinstance(outcome, Failed) == expected.fails, outcome
    assert place.look() == expected.after, "the step is done"
    again = place.write(spark, SQL["rows"], said, identity=identity(lease=2), **call)
    assert isinstance(again, Failed) == expected.fails, again
    assert place.look() == expected.after, "the same call again"
    if isinstance(outcome, Success):
        assert again.value == outcome.value
        assert outcome.value["row_count"] == (0 if mode == "ignore" else 2)
        assert outcome.value.get("skipped", False) == (mode == "ignore")


@cells
def test_what_there_is_after_a_step_without_rows(
    spark: Runner, place: WritePlace, mode: str
) -> None:
    expected = MODES[mode]
    said = {"mode": mode, **expected.needs}
    if mode == "upsert":
        place.write(spark, SQL["empty"], said)
    place.fill()
    outcome = place.write(spark, SQL["empty"], said)
    assert isinstance(outcome, Failed) == expected.fails, outcome
    assert place.look() == expected.empty


@cells
def test_where_there_was_nothing_there_are_the_rows(
    spark: Runner, place: WritePlace, mode: str
) -> None:
    outcome = place.write(spark, SQL["rows"], {"mode": mode, **MODES[mode].needs})
    assert isinstance(outcome, Success), outcome
    assert place.look() == NEW


# ---- partitions ------------------------------------------------------------------------------------------------------------

DYNAMIC = "spark.sql.sources.partitionOverwriteMode"


@pytest.mark.parametrize("before", ["", ELSEWHERE])
@pytest.mark.parametrize(
    "how",
    [
        {"conf": {DYNAMIC: "dynamic"}, "output": {"mode": "overwrite"}},
        {"conf": {DYNAMIC: "DYNAMIC"}, "output": {}},
        {"output": {"mode": "overwrite", "options": {"partitionOverwriteMode": "dynamic"}}},
        {"output": {"mode": "overwrite", "options": {"partitionoverwritemode": "Dynamic"}}},
        {"output": {"mode": "overwrite_partitions"}},
    ],
    ids=["conf", "conf and the default mode", "option", "option in other letters", "mode"],
)
def test_partitions_that_are_not_written_stay(
    spark: Runner, tmp_path: Path, how: dict[str, Any], before: str
) -> None:
    _fill_folder(tmp_path / "lake")
    output = {"path": f"{before}{tmp_path}/lake", "partition_by": ["day"], **how["output"]}
    outcome = spark({**how, "sql": SQL["rows"], "output": output})
    assert isinstance(outcome, Success), outcome
    assert _rows_of(tmp_path / "lake") == MERGED


def test_an_option_wins_over_a_setting(spark: Runner, tmp_path: Path) -> None:
    output = {
        "path": f"{tmp_path}/lake",
        "partition_by": ["day"],
        "options": {"partitionOverwriteMode": "static"},
    }
    _fill_folder(tmp_path / "lake")
    spark({"conf": {DYNAMIC: "dynamic"}, "sql": SQL["rows"], "output": output})
    assert _rows_of(tmp_path / "lake") == NEW


def test_a_partition_of_null_is_one_as_any_other(spark: Runner, tmp_path: Path, dsn: str) -> None:
    table = {"kind": "postgres", "auth": {"dsn": dsn}, "table": f"t{uuid4().hex}"}
    for output in ({"path": f"{tmp_path}/lake"}, table):
        for number in (1, 2):
            sql = f"select {number} as n, cast(null as string) as day union all select {number}, 'd{number}'"
            mode = {"mode": "overwrite_partitions", "partition_by": ["day"]}
            assert isinstance(spark({"sql": sql, "output": {**output, **mode}}), Success)
    folders = {
        path.name: len(list(path.glob("*.parquet"))) for path in (tmp_path / "lake").glob("day=*")
    }
    assert folders == {"day=__HIVE_DEFAULT_PARTITION__": 1, "day=d1": 1, "day=d2": 1}
    with psycopg.connect(dsn) as connection:
        found = connection.execute(
            f"select n, day from {table['table']} order by n, day"
        ).fetchall()
    assert found == [(1, "d1"), (2, "d2"), (2, None)]


def test_the_partitions_of_null_and_of_an_empty_text_are_one(spark: Runner, tmp_path: Path) -> None:
    """As Spark has it; docs/spark.md says so."""
    output = {"path": f"{tmp_path}/lake", "partition_by": ["day"], "mode": "overwrite_partitions"}
    for sql in ("select 1 as n, '' as day", "select 2 as n, cast(null as string) as day"):
        assert isinstance(spark({"sql": sql, "output": output}), Success)
    rows = spark.rows(
        {"inputs": {"p": {"path": f"{tmp_path}/lake"}}, "sql": "select n, day from p"}
    )
    assert rows == [{"n": 2, "day": None}]


# ---- a step that reads what it replaces --------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", ["", ELSEWHERE])
@pytest.mark.parametrize("mode", ["overwrite", "overwrite_partitions", "append"])
def test_a_step_may_replace_what_it_reads_once(
    spark: Runner, tmp_path: Path, mode: str, before: str
) -> None:
    path = f"{before}{tmp_path}/lake"
    _fill_folder(tmp_path / "lake")
    config = {
        "sql": "select n + 100 as n, day from lake",
        "inputs": {"lake": {"path": path}},
        "output": {"path": path, "mode": mode, "partition_by": ["day"]},
    }
    key = uuid4().hex
    for lease in (1, 2):
        outcome = spark(config, key=key, identity=identity(lease=lease))
        assert isinstance(outcome, Success), outcome
    more = OLD if mode == "append" else []
    assert _rows_of(tmp_path / "lake") == sorted([*more, (101, "a"), (102, "b")])


# ---- what is refused ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["overwrite", "append", "overwrite_partitions"])
@pytest.mark.parametrize(
    ("file", "refused", "said"),
    [
        ("day=b/mine.parquet", ("overwrite", "overwrite_partitions"), "files that no Spark job wrote (day=b/mine.parquet)"),
        ("day=a/mine.parquet", ("overwrite",), "files that no Spark job wrote"),
        ("notes.txt", ("overwrite", "append", "overwrite_partitions"), "notes.txt"),
        ("day=a/part-00000-x.csv", ("append", "overwrite_partitions"), "files of another format (day=a/part-00000-x.csv)"),
        ("part-00000-x.parquet", ("append", "overwrite_partitions"), "is partitioned by nothing"),
        ("day=a/hour=1/part-00000-x.parquet", ("append", "overwrite_partitions"), "is partitioned by day, hour"),
        ("_delta_log/0.json", ("overwrite", "append", "overwrite_partitions"), "a table with a log of its own"),
        ("_notes", (), ""),
    ],
)  # fmt: skip
def test_what_others_have_put_there_is_never_removed(
    spark: Runner, tmp_path: Path, mode: str, file: str, refused: tuple[str, ...], said: str
) -> None:
    mine = tmp_path / "lake" / file
    mine.parent.mkdir(parents=True)
    if mine.name == "mine.parquet":
        pq.write_table(pa.table({"n": pa.array([1], pa.int32())}), mine)
    else:
        mine.write_text("mine")
    content = mine.read_bytes()
    output = {"path": f"{tmp_path}/lake", "partition_by": ["day"], "mode": mode}
    outcome = spark({"sql": SQL["rows"], "output": output})
    if mode in refused:
        assert isinstance(outcome, Failed), outcome
        assert (outcome.failure.code, outcome.failure.kind) == ("SPARK_CONFIG", "config")
        assert said in outcome.failure.message
        assert mine.read_bytes() == content
        assert not list(mine.parent.rglob("*zstd*"))
    else:
        assert isinstance(outcome, Success), outcome
        assert mine.exists() == (not mine.name.startswith("part-") or mode != "overwrite")


def test_a_file_is_no_folder(spark: Runner, tmp_path: Path) -> None:
    (tmp_path / "lake.csv").write_text("mine")
    failure = spark.failure({"sql": "select 1 as n", "output": {"path": f"{tmp_path}/lake.csv"}})
    assert "is a file, and Spark writes folders" in failure.message
    assert (tmp_path / "lake.csv").read_text() == "mine"


def test_rows_that_may_have_been_added_are_not_added_again(spark: Runner, tmp_path: Path) -> None:
    """Elsewhere than on this machine: a try was lost while Spark copied its rows."""
    key = uuid4().hex
    begun = spark.folder / "results" / "staging" / "spark-copies" / key[:16]
    begun.parent.mkdir(parents=True)
    begun.touch()
    config = {
        "sql": SQL["rows"],
        "output": {"path": f"{ELSEWHERE}{tmp_path}/lake", "mode": "append"},
    }
    failure = spark.failure(config, key=key, identity=identity(lease=2))
    assert (failure.code, failure.retryable) == ("SPARK_OUTPUT", False)
    assert "a second copy would double them" in failure.message
    assert _rows_of(tmp_path / "lake") == []
    config["output"]["mode"] = "overwrite"
    assert isinstance(spark(config, key=key, identity=identity(lease=2)), Success)
    assert _rows_of(tmp_path / "lake") == NEW
