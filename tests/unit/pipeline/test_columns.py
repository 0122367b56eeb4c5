"""Secrets in batches of Arrow: gone from every kind of column, and nothing else is touched."""

from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st

from noetl.pipeline.secrets.redaction import Redactor
from noetl.results.formats.rowsets import RowSetWriter, list_rows
from noetl.results.formats.tables import TableOptions

SECRET = 'hunter2"é-hunter2'


def clean_column(kind: pa.DataType, values: list[Any]) -> list[Any]:
    redactor = Redactor()
    redactor.register_secret("pg.password", SECRET)
    redactor.register_secret("pg.pin", 12345678)
    batch = pa.RecordBatch.from_arrays([pa.array(values, kind)], names=["c"])
    found = redactor.redact_rows(batch)
    assert found.schema == batch.schema
    return [row["c"] for row in list_rows(found)]


@pytest.mark.parametrize(
    ("kind", "value", "seen"),
    [
        (pa.string(), f"a {SECRET} b", "a ***pg.password*** b"),
        (pa.large_string(), SECRET, "***pg.password***"),
        (pa.json_(), '{"k": "hunter2\\"é-hunter2"}', {"k": "***pg.password***"}),
        (pa.list_(pa.string()), ["x", SECRET], ["x", "***pg.password***"]),
        (pa.struct([("k", pa.string())]), {"k": SECRET}, {"k": "***pg.password***"}),
        (pa.string(), "id 12345678", "id ***pg.pin***"),
        (pa.int64(), 12345678, None),
        (pa.int32(), 12345678, None),
    ],
)
def test_a_secret_is_taken_out_of_any_column(kind: pa.DataType, value: Any, seen: Any) -> None:
    assert clean_column(kind, [None, value, None]) == [None, seen, None]


def test_a_secret_in_bytes_is_no_longer_there() -> None:
    [found] = clean_column(pa.binary(), [b"\xff" + SECRET.encode() + b"\x00"])
    assert found == "/yoqKgA="


def test_a_secret_is_in_no_name_of_a_column() -> None:
    redactor = Redactor()
    redactor.register_secret("p", SECRET)
    writer = RowSetWriter(
        pa.schema([(SECRET, pa.int64()), ("b", pa.string())]),
        TableOptions(clean=redactor.redact_rows),
    )
    writer.write(
        pa.RecordBatch.from_pylist(
            [{SECRET: 1, "b": "x"}], schema=pa.schema([(SECRET, "int64"), ("b", "string")])
        )
    )
    table = writer.finish()
    assert table.columns == ["***p***", "b"]
    assert table.value()["rows"] == [{"***p***": 1, "b": "x"}]


def test_a_part_of_a_batch_is_looked_at_alone() -> None:
    redactor = Redactor()
    redactor.register_secret("p", SECRET)
    batch = pa.RecordBatch.from_arrays([[SECRET, "a", "b"]], names=["c"])
    assert list_rows(redactor.redact_rows(batch.slice(1))) == [{"c": "a"}, {"c": "b"}]
    assert list_rows(redactor.redact_rows(batch.slice(0, 1))) == [{"c": "***p***"}]


@given(
    st.lists(st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=6), max_size=20)
)
def test_rows_without_one_stay_what_they_are(values: list[str | None]) -> None:
    redactor = Redactor()
    redactor.register_secret("p", "a long secret")
    batch = pa.RecordBatch.from_arrays([pa.array(values, pa.string())], names=["c"])
    assert redactor.redact_rows(batch) is batch
    assert Redactor().redact_rows(batch) is batch
