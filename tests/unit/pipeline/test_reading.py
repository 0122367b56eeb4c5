"""Stored results for people: previews, bytes by position, formats; over payloads of every shape and tier."""

import asyncio
import csv
import io
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from noetl.model.decisions import AddPart
from noetl.model.errors import InvalidInput, NotFound, StoreUnavailable
from noetl.model.ids import RefId
from noetl.model.previews import ShownColumn
from noetl.model.reference import Reference, make_address
from noetl.pipeline.environment import read_no_manifest
from noetl.pipeline.output.reading import (
    BATCH_ROWS,
    MAX_PREVIEW_ROW_BYTES,
    MAX_PREVIEW_VALUE_BYTES,
    MAX_SHOWN_CHARS,
    MAX_SHOWN_ITEMS,
    StoredResults,
)
from noetl.pipeline.output.result_writer import ResultWriter
from noetl.pipeline.scope.results import ResultReader
from noetl.results.port import ByteSource, ResultStore
from noetl.results.router import ResultRouter
from noetl.results.tiers.memory import ResultsMemory
from tests.stores import in_files
from tests.unit.pipeline.bench import command, plan_of

PLAN = plan_of("- step: s\n")
MANY = [
    {"id": n, "name": f"n{n}", "password": "hush", "next_page_token": "t"} for n in range(2_500)
]


class NoBlobs:
    """Servers that keep small payloads in a dict."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}

    async def payload(self, ref_id: RefId, uri: str) -> bytes | None:
        return self.kept.get(uri)

    async def put_payload(self, reference: Reference, payload: bytes) -> None:
        self.kept[reference.uri] = payload


@pytest.fixture(params=["memory", "kv", "disk"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ResultStore:
    if request.param == "memory":
        return ResultsMemory()
    return ResultRouter(
        NoBlobs(), in_files(tmp_path), tier="disk" if request.param == "disk" else "auto"
    )


async def put(store: ResultStore, value: Any) -> Reference:
    """As a task does: records become columns."""
    persist = ResultWriter(command(PLAN), store, ResultReader(store, read_no_manifest), launch=2)
    found = (await persist.put_result("t", value, {})).reference
    assert found is not None
    return found


def read_value(
    store: ResultStore, value: Any, look: Callable[[StoredResults, Reference], Awaitable[Any]]
) -> Any:
    async def go() -> Any:
        return await look(StoredResults(store, read_no_manifest), await put(store, value))

    return asyncio.run(go())


def data(
    store: ResultStore,
    value: Any,
    format: str | None = None,
    start: int = 0,
    stop: int | None = None,
) -> bytes:
    async def look(reading: StoredResults, reference: Reference) -> bytes:
        found = await reading.download(reference, format, start, stop)
        return b"".join([part async for part in found.parts(0, None)])

    return bytes(read_value(store, value, look))


VALUES: list[Any] = [
    None, 7, "text", {"a": {"b": [1]}}, [], [1, "two", None], MANY, [{"a": 1}, {"b": [2]}], {"rows": MANY, "more": 1},
    {"before": 1, "data": MANY, "after": [2]}, {"rows": [{"a": 1}], "columns": ["a"]},
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES[1:])
def test_json_is_the_value_however_it_is_stored(store: ResultStore, value: Any) -> None:
    assert json.loads(data(store, value, "json")) == value


def test_nothing_is_null() -> None:
    async def look() -> list[bytes]:
        found = await StoredResults(ResultsMemory(), read_no_manifest).download(None, None)
        return [part async for part in found.parts(0, None)]

    assert asyncio.run(look()) == [b"null"]


@pytest.mark.parametrize("value", [MANY, {"before": 1, "data": MANY}, MANY[:3], {"rows": MANY[:3]}])
def test_rows_become_lines_and_tables(store: ResultStore, value: Any) -> None:
    rows = value if isinstance(value, list) else value.get("data") or value["rows"]
    assert [json.loads(line) for line in data(store, value, "jsonl").splitlines()] == rows
    text = data(store, value, "csv").decode()
    found = list(csv.DictReader(io.StringIO(text)))
    assert found == [{name: str(part) for name, part in row.items()} for row in rows]
    table = pq.read_table(pa.BufferReader(data(store, value, "parquet")))
    assert table.to_pylist() == rows


@pytest.mark.parametrize("format", ["json", "jsonl", "csv", "parquet"])
@pytest.mark.parametrize(
    "span", [(0, 2), (BATCH_ROWS - 1, BATCH_ROWS + 1), (2_499, None), (2_400, 9_999), (9_999, None)]
)
def test_a_span_of_rows(store: ResultStore, format: str, span: tuple[int, int | None]) -> None:
    got = data(store, MANY, format, *span)
    match format:
        case "json":
            found = json.loads(got)
        case "jsonl":
            found = [json.loads(line) for line in got.splitlines()]
        case "csv":
            found = [
                {**row, "id": int(row["id"])} for row in csv.DictReader(io.StringIO(got.decode()))
            ]
        case _:
            found = pq.read_table(pa.BufferReader(got)).to_pylist()
    assert found == MANY[slice(*span)]


def test_csv_of_what_is_no_table() -> None:
    assert data(ResultsMemory(), [1, None, "", "a,b"], "csv") == b'value\n1\n\n""\n"a,b"\n'
    nested = [{"a": {"b": 1}, "c": True}]
    assert data(ResultsMemory(), nested, "csv") == b'a,c\n"{""b"":1}",true\n'
    assert data(ResultsMemory(), [], "csv") == b""
    late = [{"a": 1}] * BATCH_ROWS + [{"a": 1, "b": 2}]
    with pytest.raises(InvalidInput, match="'b'"):
        data(ResultsMemory(), late, "csv")


@pytest.mark.parametrize("format", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize("value", [7, {"a": 1}, "text"])
def test_what_has_no_rows_is_refused_before_the_first_byte(format: str, value: Any) -> None:
    with pytest.raises(InvalidInput, match="no rows"):
        data(ResultsMemory(), value, format)
    with pytest.raises(InvalidInput, match="no rows"):
        data(ResultsMemory(), value, "json", 1, 2)


@pytest.mark.parametrize("value", [[{"a": 1}, {"a": "x"}], [{"a": 1}, {"a": 2**70}]])
def test_rows_that_fit_no_columns_are_refused_as_parquet_before_the_first_byte(value: Any) -> None:
    with pytest.raises(InvalidInput, match="do not fit columns"):
        read_value(
            ResultsMemory(),
            value,
            lambda reading, reference: reading.download(reference, "parquet"),
        )


@pytest.mark.parametrize(
    ("value", "start", "names"),
    [
        ([{"a": 1, "b": "x"}], 5, {"a": "int64", "b": "string"}),
        ({"rows": [{"a": 1.5}], "more": 1}, 1, {"a": "double"}),
        ({"rows": [], "columns": ["a", "b"]}, 0, {"a": "null", "b": "null"}),
    ],
)
def test_parquet_without_rows_has_the_columns_that_are_known(
    value: Any, start: int, names: dict[str, str]
) -> None:
    table = pq.read_table(pa.BufferReader(data(ResultsMemory(), value, "parquet", start)))
    assert ({field.name: str(field.type) for field in table.schema}, table.num_rows) == (names, 0)


@pytest.mark.parametrize(
    "value", [[], [{}], {"rows": []}, {"rows": [], "columns": [1]}, {"rows": [], "columns": []}]
)
def test_parquet_without_columns_is_refused_before_the_first_byte(value: Any) -> None:
    with pytest.raises(InvalidInput, match="no columns") as refused:
        read_value(
            ResultsMemory(),
            value,
            lambda reading, reference: reading.download(reference, "parquet"),
        )
    assert refused.value.hint == "use the format json"


def test_a_span_of_rows_without_a_format_is_json(store: ResultStore) -> None:
    few = MANY[:200]  # small enough to be kept as Arrow
    assert json.loads(data(store, few, None, 1, 3)) == few[1:3]
    with pytest.raises(InvalidInput, match="no format 'arrow'"):
        data(store, few, "arrow", 1, 3)


def test_stored_bytes_are_read_by_position(store: ResultStore) -> None:
    async def look(reading: StoredResults, reference: Reference) -> tuple[Any, ...]:
        found = await reading.download(reference, None)
        whole = b"".join([part async for part in found.parts(0, None)])
        assert (found.size, found.sha256) == (len(whole), reference.sha256)
        middle = b"".join([part async for part in found.parts(3, 10)])
        beyond = b"".join([part async for part in found.parts(len(whole) - 2, len(whole) + 9)])
        return whole, middle, beyond, found.extension

    whole, middle, beyond, extension = read_value(store, {"text": "x" * 300_000}, look)
    assert json.loads(whole) == {"text": "x" * 300_000}
    assert (middle, beyond, extension) == (whole[3:10], whole[-2:], "json")


def test_a_preview_of_rows(store: ResultStore) -> None:
    found = read_value(
        store, {"data": MANY, "more": 1}, lambda reading, reference: reading.preview(reference, 3)
    )
    assert (found.row_count, found.cut, found.value) == (2_500, True, None)
    assert found.rows == [{"id": n, "name": f"n{n}", "next_page_token": "t"} for n in range(3)]
    assert found.columns[0] == ShownColumn("id", "int64")
    assert [column.name for column in found.columns] == list(MANY[0])


def test_a_preview_of_a_few_rows_that_are_json(store: ResultStore) -> None:
    found = read_value(
        store,
        [{"a": 1, "Password": "x"}, {"b": [2]}],
        lambda reading, reference: reading.preview(reference, 9),
    )
    assert (found.row_count, found.cut, found.rows) == (2, False, [{"a": 1}, {"b": [2]}])
    assert [column.name for column in found.columns] == ["a", "Password", "b"]


def test_a_preview_of_a_value(store: ResultStore) -> None:
    value = {
        "a": {"api_key": "k", "next_page_token": "t"},
        "long": "x" * (MAX_SHOWN_CHARS + 1),
        "list": list(range(MAX_SHOWN_ITEMS + 1)),
    }
    found = read_value(store, value, lambda reading, reference: reading.preview(reference, 9))
    assert (found.rows, found.row_count, found.cut) == (None, None, False)
    assert found.value["a"] == {"next_page_token": "t"}
    assert len(found.value["long"]) == MAX_SHOWN_CHARS + 1
    assert found.value["list"] == [*range(MAX_SHOWN_ITEMS), "…"]


@pytest.mark.parametrize(
    "wrap", [lambda value: [value], lambda value: {"a": value}, lambda value: [{"a": value}]]
)
def test_a_preview_of_a_deep_value_ends_somewhere(
    store: ResultStore, wrap: Callable[[Any], Any]
) -> None:
    value: Any = 1
    for _ in range(450):
        value = wrap(value)
    found = read_value(store, value, lambda reading, reference: reading.preview(reference, 9))
    assert str([found.value, found.rows]).count("…") == 1


def test_a_large_value_without_rows_is_not_opened(store: ResultStore) -> None:
    found = read_value(
        store,
        {"text": "x" * MAX_PREVIEW_VALUE_BYTES},
        lambda reading, reference: reading.preview(reference, 9),
    )
    assert (found.value, found.cut) == (None, True)


def test_a_preview_opens_fewer_rows_when_they_are_large(store: ResultStore) -> None:
    value = [["x" * (MAX_PREVIEW_ROW_BYTES // 3)] for _ in range(5)]
    found = read_value(store, value, lambda reading, reference: reading.preview(reference, 9))
    assert (found.row_count, found.cut, len(found.rows)) == (5, True, 2)


async def loop(store: ResultStore) -> tuple[StoredResults, Reference]:
    """Three items in two parts; the second failed."""
    rows = [
        {"index": n, "status": "error" if n == 1 else "ok", "error": {"code": "E"}, "result": n}
        for n in range(3)
    ]
    parts = [
        AddPart(
            "ac7",
            first,
            count,
            await store.put(
                make_address("7", "result", "s", f"p{first}"), rows[first : first + count]
            ),
        )
        for first, count in ((0, 2), (2, 1))
    ]

    async def manifest(name: str) -> list[AddPart]:
        return parts if name == "ac7" else []

    uri = "noetl://execution/7/manifest/s/ac7"
    return StoredResults(store, manifest), Reference(
        ref_id=RefId("ac7"), type="db", uri=uri, rows=3, format="manifest"
    )


def test_the_result_of_a_loop_is_one_value_per_item(store: ResultStore) -> None:
    async def look() -> None:
        reading, reference = await loop(store)
        expected = [0, {"status": "error", "error": {"code": "E"}}, 2]
        found = await reading.download(reference, None)
        assert (found.size, found.extension) == (None, "json")
        assert json.loads(b"".join([part async for part in found.parts(0, None)])) == expected
        assert (await reading.preview(reference, 2)).rows == expected[:2]
        assert await reading.resolve(reference) == expected

    asyncio.run(look())


class Away(ResultsMemory):
    async def open(self, reference: Reference) -> ByteSource:
        raise StoreUnavailable("object")


def test_who_cannot_have_it_hears_so_before_the_first_byte() -> None:
    async def look() -> None:
        gone = Reference(
            ref_id=RefId("1"),
            type="disk",
            uri="noetl://execution/7/result/s/k",
            bytes=3,
            format="json",
        )
        with pytest.raises(NotFound) as found:
            await StoredResults(ResultsMemory(), read_no_manifest).download(gone, None)
        assert "NOETL_HOME" in str(found.value.hint)
        with pytest.raises(NotFound):
            await StoredResults(ResultsMemory(), read_no_manifest).preview(gone, 1)
        with pytest.raises(StoreUnavailable):
            await StoredResults(Away(), read_no_manifest).download(gone, None)

    asyncio.run(look())
