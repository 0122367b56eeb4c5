"""A record that cannot be read fails the step that reads its file, unless the input says otherwise."""

from pathlib import Path
from typing import Any

import pytest

from tests.integration.spark.conftest import Runner

LINES = '{"id": 1, "v": "a"}\n{"id": 2, "v":\n{"id": 3, "v": "c"}\n'
LONG = "id,zip\n1,01\n2,02,secret\n3,03\n"
SHORT = "id,zip\n1,01\n2\n3,03\n"
BROKEN_LINE_BREAK = 'id,zip\n1,"0\n1"\n2,02\n'


def _input(path: Path, **options: Any) -> dict[str, Any]:
    header = {"header": True} if path.suffix == ".csv" else {}
    return {"p": {"path": str(path), "options": {**header, **options}}}


def _file(tmp_path: Path, name: str, text: str) -> Path:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    "sql", ["select * from p", "select id from p", "select count(*) as n from p"]
)
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.jsonl", LINES),
        ("long.csv", LONG),
        ("short.csv", SHORT),
        ("lines.csv", BROKEN_LINE_BREAK),
    ],
)
def test_a_broken_record_fails_the_step_and_names_the_file(
    spark: Runner, tmp_path: Path, name: str, text: str, sql: str
) -> None:
    path = _file(tmp_path, name, text)
    failure = spark.failure({"inputs": _input(path), "sql": sql})
    assert (failure.code, failure.kind) == ("SPARK_INPUT", "data"), failure
    assert f"{path} has a record that cannot be read" in failure.message
    assert "mode: PERMISSIVE" in failure.message
    assert "secret" not in str(failure), "values of rows are not recorded"


def test_the_broken_file_of_a_folder_is_named(spark: Runner, tmp_path: Path) -> None:
    _file(tmp_path, "lines/a.jsonl", '{"id": 1}\n')
    broken = _file(tmp_path, "lines/b.jsonl", LINES)
    given = {"p": {"path": str(tmp_path / "lines"), "format": "json"}}
    failure = spark.failure({"inputs": given, "sql": "select count(*) as n from p"})
    assert failure.message.startswith(
        f"input p: file://{broken} has a record that cannot be read"
    ), failure


@pytest.mark.parametrize(("mode", "ids"), [("PERMISSIVE", [1, 2, 3]), ("DROPMALFORMED", [1, 3])])
def test_an_input_may_say_what_to_do_with_broken_records(
    spark: Runner, tmp_path: Path, mode: str, ids: list[int]
) -> None:
    path = _file(tmp_path, "a.csv", SHORT)
    inputs = _input(path, mode=mode, inferSchema=True)
    rows = spark.rows({"inputs": inputs, "sql": "select * from p order by id"})
    assert [row["id"] for row in rows] == ids


def test_an_input_that_names_a_column_for_broken_records_gets_it(
    spark: Runner, tmp_path: Path
) -> None:
    path = _file(tmp_path, "a.jsonl", LINES)
    inputs = _input(path, columnNameOfCorruptRecord="broken")
    rows = spark.rows(
        {
            "inputs": inputs,
            "sql": "select id, broken is not null as is_broken from p order by id nulls last",
        }
    )
    assert [row["is_broken"] for row in rows] == [False, False, True]


def test_files_with_other_headers_are_not_read_as_one(spark: Runner, tmp_path: Path) -> None:
    _file(tmp_path, "lake/part-0.csv", "id,v\n1,a\n")
    _file(tmp_path, "lake/part-1.csv", "v,id\nb,2\n")
    given = {"p": {"path": str(tmp_path / "lake"), "format": "csv", "options": {"header": True}}}
    for sql in ("select * from p", "select count(*) as n from p"):
        failure = spark.failure({"inputs": given, "sql": sql})
        assert failure.code == "SPARK_INPUT", failure
        assert "has another header than the other files" in failure.message


def test_whole_files_are_read_as_ever(spark: Runner, tmp_path: Path) -> None:
    _file(tmp_path, "lake/part-0.csv", 'id,v\n1,"a ""b"", c"\n\n')
    _file(tmp_path, "lake/part-1.csv", "id,v\n")
    _file(tmp_path, "lake/part-2.csv", "")
    _file(tmp_path, "lake/part-3.csv", "ID,v\n2,\n")
    given = {"p": {"path": str(tmp_path / "lake"), "format": "csv", "options": {"header": True}}}
    rows = spark.rows({"inputs": given, "sql": "select id, v from p order by id"})
    assert rows == [{"id": "1", "v": 'a "b", c'}, {"id": "2", "v": None}]


def test_xml_with_a_broken_record_fails_too(spark: Runner, tmp_path: Path) -> None:
    path = _file(
        tmp_path, "a.xml", "<rows><row><id>1</id></row><row><id>2</row><row><id>3</id></row></rows>"
    )
    inputs = {"p": {"path": str(path), "options": {"rowTag": "row"}}}
    failure = spark.failure({"inputs": inputs, "sql": "select * from p"})
    assert "a.xml has a record that cannot be read" in failure.message
