"""Rows as files: one dialect of CSV, and types that fit all rows."""

import csv
import io
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from noetl.results.formats.exported import (
    ColumnTypes,
    ParquetWriter,
    encode_csv_batch,
    encode_csv_header,
    encode_csv_records,
    make_batch,
)
from noetl.results.formats.values import UnfitValue

UID = UUID("12345678-1234-5678-1234-567812345678")


def kinds(*batches: list[dict[str, Any]]) -> pa.Schema:
    found = ColumnTypes()
    for batch in batches:
        found.observe_records(batch)
    return found.schema


def write_and_read(*batches: list[dict[str, Any]]) -> list[Any]:
    """As a file has them."""
    schema, out = kinds(*batches), io.BytesIO()
    file = ParquetWriter(out, schema)
    for batch in batches:
        file.add(make_batch(batch, schema))
    file.close()
    rows: list[Any] = pq.read_table(pa.BufferReader(out.getvalue())).to_pylist()
    return rows


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ((1, 2), pa.int64()),
        ((1, 2.5), pa.float64()),
        ((None, 1), pa.int64()),
        (("a", None), pa.string()),
        ((None, None), pa.null()),
        (([], [1], [2.5]), pa.list_(pa.float64())),
        (({"a": 1}, {"b": "x"}), pa.struct([("a", pa.int64()), ("b", pa.string())])),
        (({}, {"a": 1}), pa.struct([("a", pa.int64())])),
        (({"a": 1}, {"a": "x"}), pa.json_()),
        (([1], ["x"]), pa.json_()),
        (([1], {"a": 1}, "x", 1), pa.json_()),
        (({}, {}), pa.json_()),
        (([{}],), pa.json_()),
    ],
)
@pytest.mark.parametrize("apart", [False, True])
def test_a_column_has_a_type_that_fits_all_rows(
    values: tuple[Any, ...], kind: pa.DataType, apart: bool
) -> None:
    rows = [{"v": value} for value in values]
    batches = [[row] for row in rows] if apart else [rows]
    assert kinds(*batches).field("v").type == kind
    assert len(write_and_read(*batches)) == len(rows)


def test_values_without_a_common_type_are_json_and_columns_may_come_late() -> None:
    found = write_and_read([{"a": [1]}, {"a": None}], [{"a": "x", "b": 1}])
    assert found == [{"a": "[1]", "b": None}, {"a": None, "b": None}, {"a": '"x"', "b": 1}]


@pytest.mark.parametrize(
    "values", [(1, "x"), ("x", 1), (True, 1), (None, 1, None, "x"), (1.5, False)]
)
@pytest.mark.parametrize("apart", [False, True])
def test_numbers_and_texts_in_one_column_are_refused_by_its_name(
    values: tuple[Any, ...], apart: bool
) -> None:
    rows = [{"other": 0, "v": value} for value in values]
    with pytest.raises(UnfitValue, match="column 'v'") as refused:
        kinds(*([[row] for row in rows] if apart else [rows]))
    assert (refused.value.column, refused.value.row) == ("v", len(values) - 1)


def test_an_integer_that_no_double_is_does_not_become_one() -> None:
    batches = [{"v": 2**60 + 1}], [{"v": 0.5}]
    with pytest.raises(UnfitValue, match="column 'v'"):
        kinds([row for batch in batches for row in batch])
    with pytest.raises(UnfitValue, match="column 'v'"):
        make_batch(batches[0], kinds(*batches))
    with pytest.raises(UnfitValue, match="column 'v'"):
        kinds([{"v": 2**64}])


TYPED = pa.RecordBatch.from_pydict(
    {
        "i": pa.array([1, None], pa.int32()),
        "t": pa.array(["", None]),
        "q": pa.array(['a"b', "c,d\ne"]),
        "o": pa.array([True, False]),
        "m": pa.array([Decimal("12345678901234567.10"), None], pa.decimal128(20, 2)),
        "f": pa.array([0.1, float("nan")]),
        "d": pa.array([date(2024, 2, 29), None]),
        "c": pa.array([time(10, 0), None], pa.time64("us")),
        "z": pa.array([datetime(2024, 2, 29, 10, tzinfo=UTC), None], pa.timestamp("us", "UTC")),
        "s": pa.array([timedelta(days=1), None], pa.duration("us")),
        "b": pa.array([b"\x00\x01", b""]),
        "u": pa.array([UID.bytes, None], pa.uuid()),
        "j": pa.array(['{"a": [1, null]}', '"x"'], pa.json_()),
        "l": pa.array([[1, None], []], pa.list_(pa.int32())),
    }
)
CELLS = (
    f'1,"","a""b",true,12345678901234567.10,0.1,2024-02-29,10:00:00,2024-02-29T10:00:00+00:00,86400.0,AAE=,{UID},'
    '"{""a"": [1, null]}","[1,null]"\n'
    ',,"c,d\ne",false,,nan,,,,,"",,"""x""",[]\n'
)


def test_cells_of_a_row_set() -> None:
    assert encode_csv_header(TYPED.schema.names) == b"i,t,q,o,m,f,d,c,z,s,b,u,j,l\n"
    assert encode_csv_batch(TYPED).decode() == CELLS
    assert encode_csv_batch(TYPED.slice(0, 0)) == b""
    assert encode_csv_header(["a,b", ""]) == b'"a,b",""\n'


def test_cells_of_plain_records_are_the_same() -> None:
    row = {"a": 1, "b": "", "c": None, "d": [1, None], "e": {"x": 'y"'}, "f": True, "g": 0.5}
    text = encode_csv_records([row, {"a": 2}], list(row)).decode()
    assert text == '1,"",,"[1,null]","{""x"":""y\\""""}",true,0.5\n2,,,,,,\n'
    assert next(csv.reader(io.StringIO(text)))[4] == '{"x":"y\\""}'
