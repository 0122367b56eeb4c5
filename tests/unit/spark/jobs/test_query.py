"""What is asked and how answers look, without Spark."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest

from noetl.model.errors import InvalidInput
from noetl.spark.jobs.query import mentioned, records_of, rows_of


def test_only_what_a_question_may_be_about_is_read() -> None:
    assert mentioned("select * from Executions where path = 'x'") == ("executions",)
    assert mentioned("select 1") == ()


# ---- answers -------------------------------------------------------------------------------------------------------------


def test_values_of_an_answer_are_those_of_any_result() -> None:
    noon = datetime(2026, 1, 31, 12, tzinfo=UTC)
    answer = pa.table(
        {
            "number": [float("nan")],
            "bytes": [b"\x00"],
            "map": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())),
            "moment": pa.array([noon.astimezone(ZoneInfo("Asia/Tokyo"))], pa.timestamp("us", "Asia/Tokyo")),
        }
    )
    row = {"number": "nan", "bytes": "AA==", "map": {"k": 1}, "moment": "2026-01-31T12:00:00+00:00"}
    assert list(records_of(answer)) == [row]


def test_columns_of_one_name_are_all_there_but_not_by_name() -> None:
    answer = pa.Table.from_arrays([pa.array([1, 3]), pa.array([2, 4])], names=["a", "a"])
    assert list(rows_of(answer)) == [[1, 2], [3, 4]]
    with pytest.raises(InvalidInput, match="'a'"):
        records_of(answer)
