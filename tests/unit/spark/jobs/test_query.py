"""What is asked and how answers look, without Spark."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest

from noetl.model.errors import InvalidInput
from noetl.spark.jobs.query import (
    find_mentioned_tables,
    list_answer_records,
    list_answer_rows,
    parse_question,
)


def test_only_what_a_question_may_be_about_is_read() -> None:
    assert find_mentioned_tables("select * from Executions where path = 'x'") == ("executions",)
    assert find_mentioned_tables("select 1") == ()
    assert find_mentioned_tables("show tables") == ("events", "executions", "results")


@pytest.mark.parametrize(
    "text",
    [
        "select 1",
        "(SELECT 1) union (select 2)",
        "values (1)",
        "table events",
        "desc events",
        "show tables",
        "explain select 1",
    ],
)
def test_a_question_is_asked_as_it_is(text: str) -> None:
    assert parse_question(f"-- why\n{text};\n") == text


def test_what_may_be_more_than_a_query_is_asked_as_one() -> None:
    assert (
        parse_question("with x as (select 1) select * from x;")
        == "(with x as (select 1) select * from x\n)"
    )
    assert parse_question("From events select step") == "(From events select step\n)"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("drop table events", "'drop'"),
        ("/* select */ Insert into executions values (1)", "'Insert'"),
        ("create table zz (a int)", "'create'"),
        ("/* /* */ */ drop table events", "drop"),
        ("select 1; drop table events", "2 statements"),
        (" -- nothing", "0 statements"),
    ],
)
def test_what_does_more_than_read_is_refused(text: str, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        parse_question(text)


def test_what_spark_is_asked_has_no_comment_that_spark_might_read_otherwise() -> None:
    assert parse_question("/* /* */ select */ drop table events") == "select */ drop table events"


# ---- answers -------------------------------------------------------------------------------------------------------------


def test_values_of_an_answer_are_those_of_any_result() -> None:
    noon = datetime(2026, 1, 31, 12, tzinfo=UTC)
    answer = pa.table(
        {
            "number": [float("nan")],
            "bytes": [b"\x00"],
            "map": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())),
            "moment": pa.array(
                [noon.astimezone(ZoneInfo("Asia/Tokyo"))], pa.timestamp("us", "Asia/Tokyo")
            ),
        }
    )
    row = {"number": "nan", "bytes": "AA==", "map": {"k": 1}, "moment": "2026-01-31T12:00:00+00:00"}
    assert list(list_answer_records(answer)) == [row]


def test_columns_of_one_name_are_all_there_but_not_by_name() -> None:
    answer = pa.Table.from_arrays([pa.array([1, 3]), pa.array([2, 4])], names=["a", "a"])
    assert list(list_answer_rows(answer)) == [[1, 2], [3, 4]]
    with pytest.raises(InvalidInput, match="'a'"):
        list_answer_records(answer)
