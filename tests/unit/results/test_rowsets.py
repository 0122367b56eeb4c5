"""Row sets: written while they come, read by parts, the same values as went in."""

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from noetl.model.errors import CorruptLog
from noetl.results.formats import rowsets
from noetl.results.formats.rowsets import FooterCache, RowSetReader, RowSetWriter
from noetl.results.formats.tables import EncodedTable, TableOptions, TooManyRows, ValueHead
from noetl.results.sources import MemorySource
from noetl.results.staging import Staging
from tests.examples import count_examples

URI = "noetl://execution/1/result/s/k"


class WatchedFile(MemorySource):
    """Counts what is read."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.taken = 0

    def read(self, offset: int, length: int) -> bytes:
        data = super().read(offset, length)
        self.taken += len(data)
        return data


def write_table(
    batches: Iterator[pa.RecordBatch], schema: pa.Schema, head: ValueHead | None = None
) -> EncodedTable:
    writer = RowSetWriter(schema, TableOptions(), head)
    for batch in batches:
        writer.write(batch)
    return writer.finish()


def source(table: EncodedTable) -> WatchedFile:
    return WatchedFile(b"".join(table.staged.read_parts()))


def reader(table: EncodedTable) -> RowSetReader:
    return rowsets.open_rowset_reader(source(table), URI)


SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("noise", pa.binary())])


def make_batches(count: int, size: int = 1_000, noise: int = 0) -> Iterator[pa.RecordBatch]:
    chance = Random(1)
    for first in range(0, count, size):
        ids = list(range(first, min(first + size, count)))
        noises = [chance.randbytes(noise) for _ in ids]
        yield pa.RecordBatch.from_arrays([ids, [f"n{n}" for n in ids], noises], schema=SCHEMA)


NANOSECONDS = 1_704_164_645_123_456_789  # since 1970

TYPES: dict[str, tuple[pa.DataType, list[Any], list[Any]]] = {
    "bool": (pa.bool_(), [True, None], [True, None]),
    "int": (pa.int32(), [-1, None], [-1, None]),
    "beyond 63 bits": (pa.uint64(), [2**64 - 1, 1], [str(2**64 - 1), 1]),
    "single": (pa.float32(), [1.1, None], [1.1, None]),
    "double": (pa.float64(), [0.1, float("inf")], [0.1, "inf"]),
    "decimal": (pa.decimal128(12, 2), [Decimal("1.50"), None], [1.5, None]),
    "long decimal": (
        pa.decimal128(30, 20),
        [Decimal("0.12345678901234567890"), None],
        ["0.12345678901234567890", None],
    ),
    "text": (pa.string(), ["é\x00", None], ["é\x00", None]),
    "bytes": (pa.binary(), [b"\xff", None], ["/w==", None]),
    "date": (pa.date32(), [date(2030, 1, 2), None], ["2030-01-02", None]),
    "time": (pa.time64("us"), [time(1, 2, 3), None], ["01:02:03", None]),
    "moment": (
        pa.timestamp("us"),
        [datetime(2030, 1, 2, 3, 4, 5), None],
        ["2030-01-02T03:04:05", None],
    ),
    "moment with zone": (
        pa.timestamp("us", "Europe/Berlin"),
        [datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC), None],
        ["2030-01-02T03:04:05+00:00", None],
    ),
    "nanoseconds": (
        pa.timestamp("ns"),
        [NANOSECONDS, None],
        ["2024-01-02T03:04:05.123456789", None],
    ),
    "nanoseconds with zone": (
        pa.timestamp("ns", "UTC"),
        [-1, None],
        ["1969-12-31T23:59:59.999999999+00:00", None],
    ),
    "micros in nanoseconds": (
        pa.timestamp("ns"),
        [NANOSECONDS - 789, None],
        ["2024-01-02T03:04:05.123456", None],
    ),
    "nanoseconds of a day": (
        pa.time64("ns"),
        [3_600_000_000_001, None],
        ["01:00:00.000000001", None],
    ),
    "nanoseconds inside": (
        pa.list_(pa.timestamp("ns")),
        [[NANOSECONDS], None],
        [["2024-01-02T03:04:05.123456789"], None],
    ),
    "interval": (pa.duration("us"), [timedelta(days=1, seconds=0.5), None], [86400.5, None]),
    "months": (
        pa.month_day_nano_interval(),
        [pa.MonthDayNano([1, 1, 500_000_000]), None],
        [31 * 86400 + 0.5, None],
    ),
    "uuid": (pa.uuid(), [UUID(int=7), None], [str(UUID(int=7)), None]),
    "json": (pa.json_(), ['{"a": [1, 1.5, null]}', None], [{"a": [1, 1.5, None]}, None]),
    "list": (pa.list_(pa.date32()), [[date(2030, 1, 2), None], None], [["2030-01-02", None], None]),
    "struct": (pa.struct([("x", pa.list_(pa.int64()))]), [{"x": [1]}, None], [{"x": [1]}, None]),
    "map": (pa.map_(pa.string(), pa.int64()), [[("a", 1)], None], [{"a": 1}, None]),
    "enum": (pa.dictionary(pa.int8(), pa.string()), ["a", None], ["a", None]),
    "null": (pa.null(), [None, None], [None, None]),
}


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("name", TYPES)
def test_types_survive(name: str, large: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if large:
        monkeypatch.setattr(rowsets, "MAX_IN_MEMORY_BYTES", 0)
    kind, values, seen = TYPES[name]
    schema = pa.schema([("c", kind)])
    batch = pa.RecordBatch.from_arrays([pa.array(values, kind)], schema=schema)
    table = write_table(iter([batch]), schema)
    assert table.format == ("parquet" if large else "arrow")
    found = reader(table)
    assert found.read_rows(0, 2) == [{"c": value} for value in seen]
    assert (
        found.read_value()
        == table.value()
        == {"rows": found.read_rows(0, 2), "row_count": 2, "columns": ["c"]}
    )
    again = write_table(found.batches(), found.schema)
    assert reader(again).schema == found.schema
    assert reader(again).read_rows(0, 2) == found.read_rows(0, 2)


def test_a_number_of_unknown_precision_is_text_that_says_so() -> None:
    schema = pa.schema([pa.field("n", pa.string(), metadata=rowsets.NUMERIC_METADATA)])
    batch = pa.RecordBatch.from_arrays([["1.5", "7", "NaN", "1e-30", None]], schema=schema)
    found = reader(write_table(iter([batch]), schema))
    assert [row["n"] for row in found.read_rows(0, 5)] == [1.5, 7, "NaN", 1e-30, None]


def test_what_python_cannot_count_is_text() -> None:
    schema = pa.schema([("d", pa.date32())])
    batch = pa.RecordBatch.from_arrays(
        [pa.array([2**31 - 1], pa.int32()).view(pa.date32())], schema=schema
    )
    assert isinstance(reader(write_table(iter([batch]), schema)).read_rows(0, 1)[0]["d"], str)


def test_no_rows_have_columns_still() -> None:
    table = write_table(iter([]), SCHEMA)
    assert (table.format, table.rows) == ("arrow", 0)
    assert table.value() == {"rows": [], "row_count": 0, "columns": ["id", "name", "noise"]}


def test_a_list_has_no_head_and_an_answer_keeps_its_own() -> None:
    assert write_table(make_batches(2), SCHEMA, ValueHead()).value()[1]["id"] == 1
    found = write_table(
        make_batches(1), SCHEMA, ValueHead("data", {"status_code": 200, "data": None})
    ).value()
    assert found == {"status_code": 200, "data": [{"id": 0, "name": "n0", "noise": ""}]}


@pytest.mark.parametrize("size", [7, 1_000, 100_000])
def test_one_row_of_many_costs_one_group(size: int) -> None:
    count = 100_000
    table = write_table(make_batches(count, size, noise=200), SCHEMA)
    assert table.format == "parquet"
    assert table.staged.size > 8 << 20
    watched, footers = source(table), FooterCache()
    assert rowsets.open_rowset_reader(watched, URI, footers).count == count
    watched.taken = 0
    for row in (0, 77_777, count - 1):
        watched.taken = 0
        assert (
            rowsets.open_rowset_reader(watched, URI, footers).read_rows(row, row + 1)[0]["id"]
            == row
        )
        assert watched.taken < 2 << 20


def test_footers_are_cached_by_several_threads_at_once() -> None:
    footers = FooterCache(limit=100)
    uris = [f"file-{number}" for number in range(20)]

    def use_footers(seed: int) -> None:
        for turn in range(5_000):
            uri = uris[(seed + turn * 7) % len(uris)]
            if footers.get(uri) is None:
                footers.add(uri, SimpleNamespace(serialized_size=10))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(use_footers, range(4)))
    finally:
        sys.setswitchinterval(interval)
    assert sum(footers.get(uri) is not None for uri in uris) == 10


def test_rows_of_very_different_sizes_are_never_held_together() -> None:
    """A group has at most so many bytes, however small rows before it were."""
    schema = pa.schema([("t", pa.string())])

    def batches() -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_arrays([["x"] * 5_000_000], schema=schema)
        for n in range(40):
            yield pa.RecordBatch.from_arrays([[str(n) * 1_000_000]], schema=schema)

    table = write_table(batches(), schema)
    footer = rowsets.open_rowset_reader(source(table), URI).footer  # type: ignore[attr-defined]
    sizes = [footer.row_group(n).total_byte_size for n in range(footer.num_row_groups)]
    assert max(sizes) <= 2 * rowsets.MAX_RAW_GROUP_BYTES
    assert reader(table).read_rows(5_000_039, 5_000_041) == [{"t": "39" * 1_000_000}]


@settings(max_examples=count_examples(15), deadline=None)
@given(st.lists(st.integers(0, 400), max_size=6), st.integers(0, 2_000), st.integers(0, 2_000))
def test_any_slice_of_any_batches(sizes: list[int], start: int, stop: int) -> None:
    batches = list(make_batches(sum(sizes), 100, noise=8))
    rows = [row for batch in batches for row in rowsets.list_rows(batch)]
    table = write_table(iter(batches), SCHEMA)
    assert table.rows == len(rows)
    assert reader(table).read_rows(start, stop) == rows[start:stop]
    assert [
        n for batch in reader(table).batches(start, stop, ["id"]) for n in batch["id"].to_pylist()
    ] == [row["id"] for row in rows[start:stop]]


def test_a_page_that_is_not_what_was_written_is_found() -> None:
    table = write_table(make_batches(60_000, noise=200), SCHEMA)
    data = bytearray(b"".join(table.staged.read_parts()))
    data[len(data) // 2] ^= 1
    found = rowsets.open_rowset_reader(MemorySource(bytes(data)), URI)
    assert found.read_rows(0, 1)
    with pytest.raises(CorruptLog):
        found.read_value()
    with pytest.raises(CorruptLog):
        found.verify_sha256(table.staged.sha256)
    for torn in (bytes(data[:-10]), b"PAR1", b"\xff\xff\xff\xff1"):
        with pytest.raises(CorruptLog):
            rowsets.open_rowset_reader(MemorySource(torn), URI)


def test_what_is_written_waits_in_a_file_and_leaves_with_it(tmp_path: Path) -> None:
    for end in ("discard", "close"):
        writer = RowSetWriter(SCHEMA, TableOptions(Staging(tmp_path)))
        for batch in make_batches(60_000, noise=200):
            writer.write(batch)
        assert list(tmp_path.iterdir())
        writer.discard() if end == "discard" else writer.finish().close()
        assert not list(tmp_path.iterdir())


def test_too_many_rows_are_no_value() -> None:
    table = write_table(make_batches(rowsets.MAX_LOADED_ROWS + 1, 50_000), SCHEMA)
    with pytest.raises(TooManyRows):
        table.value()


def test_secrets_are_taken_out_of_every_batch() -> None:
    def clean(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.set_column(1, SCHEMA.field(1), pa.array(["***"] * batch.num_rows, pa.string()))

    writer = RowSetWriter(SCHEMA, TableOptions(clean=clean))
    for batch in make_batches(20, 10):
        writer.write(batch)
    assert {row["name"] for row in writer.finish().value()["rows"]} == {"***"}
