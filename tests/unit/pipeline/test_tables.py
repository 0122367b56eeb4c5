"""Row sets as steps see them: the value is a map, its rows stay in the store until one is asked for."""

import asyncio
import math
from collections.abc import Callable
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest

from noetl.model import events as e
from noetl.model.decisions import AddPart
from noetl.model.envelope import Envelope
from noetl.model.errors import StoreUnavailable
from noetl.model.events import Collection
from noetl.model.ids import RefId
from noetl.model.reference import Address, Reference
from noetl.pipeline.environment import read_no_manifest
from noetl.pipeline.scope import results as data
from noetl.pipeline.scope.lazy_results import LazyResult
from noetl.pipeline.scope.results import ResultReader, RowRange
from noetl.playbook.plan import Plan
from noetl.results.formats.rowsets import RowSetWriter
from noetl.results.formats.tables import EncodedTable, TableOptions
from noetl.results.staging import Staging
from noetl.results.tiers.memory import ResultsMemory
from noetl.template.errors import NeedsData
from noetl.tools import port as tools
from noetl.tools.duckdb.tool import Duckdb
from noetl.tools.port import Call, Success
from noetl.tools.sink.records import unwrap_result
from noetl.tools.sink.tool import SinkTool
from tests.unit.pipeline.bench import Bench, plan_of

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


def table(
    count: int, tables: TableOptions | None = None, schema: pa.Schema = SCHEMA, name: str = "n{}"
) -> EncodedTable:
    writer = RowSetWriter(schema, tables or TableOptions())
    ids = list(range(count))
    writer.write(pa.RecordBatch.from_arrays([ids, [name.format(n) for n in ids]], schema=schema))
    return writer.finish()


class WatchedStore(ResultsMemory):
    """Knows what was read, and may be out of order for a while."""

    def __init__(self, failures: int = 0) -> None:
        super().__init__()
        self.asked: list[Any] = []
        self.failures = failures

    async def put(self, address: Address, value: Any) -> Reference:
        if self.failures:
            self.failures -= 1
            raise StoreUnavailable("down")
        return await super().put(address, value)

    async def resolve(self, reference: Reference) -> Any:
        self.asked.append("whole")
        return await super().resolve(reference)

    async def read_rows(self, reference: Reference, start: int, stop: int) -> list[Any]:
        self.asked.append((start, stop))
        return await super().read_rows(reference, start, stop)

    async def open(self, reference: Reference) -> Any:
        self.asked.append("open")
        return await super().open(reference)


def run(bench: Bench, plan: Plan, **fields: Any) -> Any:
    """On a loop that has threads."""
    return asyncio.run(bench.execute(plan, **fields))


def giving(count: int, **more: Any) -> Callable[[Call], Success]:
    return lambda call: Success(table(count, call.tables, **more))


def upstream(bench: Bench, count: int) -> Envelope:
    """The envelope of a step that gave so many rows."""
    made = Bench(giving(count), store=bench.store)
    report = run(made, plan_of("- step: up\n  tool: {kind: python, code: x}\n"), step="up")
    assert isinstance(report, e.CommandCompleted), report
    return report.result


ONE = plan_of("- step: s\n  tool: {kind: python, code: x}\n")


def test_the_envelope_counts_and_names_what_the_store_has() -> None:
    bench = Bench(giving(3))
    found = run(bench, ONE).result
    assert found.context == {"row_count": 3, "columns": ["id", "name"]}
    assert (found.reference.rows, found.reference.rows_at, found.reference.format) == (
        3,
        "rows",
        "arrow",
    )
    assert bench.value(found) == {
        "rows": [{"id": n, "name": f"n{n}"} for n in range(3)],
        "row_count": 3,
        "columns": ["id", "name"],
    }


INPUT = '- step: up\n  tool: {{kind: python, code: x}}\n- step: s\n  tool: {{kind: python, code: x, input: {{v: "{}"}}}}\n'


@pytest.mark.parametrize(
    ("template", "value", "asked"),
    [
        ("{{ up.row_count }}", 1000, []),
        ("{{ up.columns }}", ["id", "name"], []),
        ("{{ up.rows | length }}", 1000, []),
        ("{{ up | length }}", 3, ["open"]),
        ("{{ up.rows[3].id }}", 3, [(3, 4)]),
        ("{{ up.rows[-1].name }}", "n999", [(999, 1000)]),
        ("{{ (up.rows | first).id }}", 0, [(0, 1)]),
        ("{{ up.rows[10:12] | map(attribute='id') | list }}", [10, 11], [(10, 12)]),
        ("{{ up.data.rows[1].id }}", 1, ["open", (1, 2)]),
        ("{{ up[0] is defined }}", False, []),
        ("{{ up.nothing is defined }}", False, ["open"]),
        ("{{ up.rows | sum(attribute='id') }}", 499500, [(0, 1000)]),
        ("{{ (up | tojson | fromjson).rows[2].id }}", 2, ["whole"]),
        ("{{ up.ref[:8] }}", "noetl://", ["open"]),
        ("{{ up.rows[1000] is defined }}", False, []),
    ],
)
def test_templates_read_what_they_use(template: str, value: Any, asked: list[Any]) -> None:
    bench = Bench(store=WatchedStore())
    up = upstream(bench, 1000)
    bench.store.asked.clear()
    report = run(bench, plan_of(INPUT.format(template)), results={"up": up})
    assert isinstance(report, e.CommandCompleted), report
    assert bench.tool.calls[-1].input == {"v": value}
    assert bench.store.asked == asked


def test_selections_of_rows_are_counted_without_reading_them() -> None:
    plan = plan_of(
        "- step: s\n  tool: {kind: python, code: x}\n"
        '  next: [{step: last, when: "{{ s.rows | length > 2 and s.rows[1].id == 1 }}"}]\n- step: last\n'
    )
    bench = Bench(giving(1000), store=WatchedStore())
    report = run(bench, plan)
    assert [
        report.result.find_selection(found.id).value for found in plan.steps["s"].selections
    ] == [True]
    assert bench.store.asked == [(1, 2)]


def test_columns_that_do_not_fit_the_context_are_read_from_the_head() -> None:
    bench = Bench(store=WatchedStore())
    schema = pa.schema([("i" * 1100, pa.int64()), ("name", pa.string())])
    bench.does = giving(3, schema=schema)
    up = run(bench, ONE).result
    assert "columns" not in up.context
    bench.does = lambda call: dict(call.input)
    run(bench, plan_of(INPUT.format("{{ up.columns | length }}")), results={"up": up})
    assert (bench.tool.calls[-1].input, bench.store.asked) == ({"v": 2}, ["open"])


def test_a_put_is_repeated_and_the_rows_are_not_asked_for_again() -> None:
    bench = Bench(giving(3), store=WatchedStore(failures=3))
    assert run(bench, ONE).result.context["row_count"] == 3
    assert len(bench.tool.calls) == 1


def test_nothing_stays_behind(tmp_path: Path) -> None:
    class Staged(ResultsMemory):
        @property
        def staging(self) -> Staging:
            return Staging(tmp_path)

    bench = Bench(giving(200_000), store=Staged())
    assert run(bench, ONE).result.reference.format == "parquet"
    assert not list(tmp_path.iterdir())


def test_a_secret_is_in_no_row() -> None:
    bench = Bench(giving(5, name="n{} has hunter2-hunter2"))
    bench.env.redactor.register_secret("pg.password", "hunter2-hunter2")
    bench.env.redactor.register_secret("pg.pin", 12345678)
    found = bench.value(run(bench, ONE).result)
    assert found["rows"][4] == {"id": 4, "name": "n4 has ***pg.password***"}


def test_too_many_rows_are_no_value_and_say_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "MAX_VALUE_ROWS", 10)
    bench = Bench()
    up = upstream(bench, 11)
    for template in ("{{ up }}", "{{ up.rows }}"):
        report = run(bench, plan_of(INPUT.format(template)), results={"up": up})
        assert report.result.error.code == "RESULT_TOO_LARGE"
        assert "duckdb" in report.result.error.message


# ---- records -----------------------------------------------------------------------------------------------------------------

RECORDS = [{"n": n, "t": f"t{n}"} for n in range(300)]
ANSWER = {"status_code": 200, "headers": {"a": "b"}, "data": RECORDS, "elapsed": 0.5}


@pytest.mark.parametrize(
    ("template", "value", "asked"),
    [
        ("{{ up.data[7].t }}", "t7", [(7, 8)]),
        ("{{ up.body[7].t }}", "t7", ["open", (7, 8)]),
        ("{{ up.data | length }}", 300, []),
        ("{{ up.status_code }}", 200, []),
        ("{{ up.headers.a }}", "b", ["open"]),
        ("{{ up.row_count }}", None, ["open"]),
        ("{{ up.http.status }}", 200, ["open"]),
        ("{{ up }}", ANSWER, ["whole"]),
    ],
)
def test_records_of_an_answer_are_rows_and_the_answer_stays_what_it_was(
    template: str, value: Any, asked: list[Any]
) -> None:
    bench = Bench(
        lambda call: Success(dict(ANSWER), {"http": {"status": 200}}), store=WatchedStore()
    )
    up = run(bench, ONE).result
    assert (up.reference.rows, up.reference.rows_at, up.reference.format) == (300, "data", "arrow")
    bench.does = lambda call: dict(call.input)
    bench.store.asked.clear()
    report = run(bench, plan_of(INPUT.format(template)), results={"up": up})
    if value is None:
        assert report.result.error.code == "TEMPLATE_UNDEFINED"
    else:
        assert bench.tool.calls[-1].input == {"v": value}
    assert bench.store.asked == asked


def test_the_policy_of_a_call_sees_its_records_as_they_came() -> None:
    plan = plan_of(
        "- step: s\n  tool: {kind: python, code: x, "
        'set: {ctx.n: "{{ response.data | length }}", ctx.t: "{{ response.data[3].t }}"}}\n'
    )
    bench = Bench(
        lambda call: Success(dict(ANSWER), {"http": {"status": 200}}), store=WatchedStore()
    )
    assert run(bench, plan).set == {"ctx.n": 300, "ctx.t": "t3"}
    assert bench.store.asked == []


def test_records_of_a_python_body_are_a_list_still() -> None:
    bench = Bench(lambda call: list(RECORDS), store=WatchedStore())
    up = run(bench, ONE).result
    assert up.context == {"row_count": 300, "columns": ["n", "t"]}
    assert (up.reference.rows, up.reference.rows_at, bench.value(up)) == (300, None, RECORDS)


# ---- loops -----------------------------------------------------------------------------------------------------------------


LOOP = '- step: up\n  tool: {kind: python, code: x}\n- step: s\n  loop: {in: "{{ up.rows }}", iterator: row}\n'
LOOP += '  tool: {kind: python, code: x, input: {id: "{{ row.id }}"}}\n'


def test_a_loop_uses_the_reference_as_it_is_and_a_chunk_reads_its_slice() -> None:
    bench = Bench(store=WatchedStore())
    up = upstream(bench, 1000)
    bench.store.asked.clear()
    plan = plan_of(LOOP)
    collection = run(bench, plan, kind="plan", site="in", results={"up": up}).plan
    assert (collection.kind, collection.size, collection.reference.uri) == (
        "reference",
        1000,
        up.reference.uri,
    )
    assert bench.store.asked == []
    fields = {
        "kind": "chunk",
        "first": 700,
        "count": 3,
        "together": 1,
        "size": 1000,
        "collection": collection,
    }
    report = run(bench, plan, results={"up": up}, **fields)
    assert [row["result"] for row in bench.value(report.result)] == [
        {"id": n} for n in (700, 701, 702)
    ]
    assert bench.store.asked[0] == (700, 703)


def test_rows_of_an_item_are_part_of_its_value() -> None:
    bench = Bench(giving(2))
    plan = plan_of("- step: s\n  loop: {in: [1], iterator: row}\n  tool: {kind: python, code: x}\n")
    items = Collection(kind="inline", size=1, items=(1,))
    fields = {
        "kind": "chunk",
        "first": 0,
        "count": 1,
        "together": 1,
        "size": 1,
        "items": (1,),
        "collection": items,
    }
    [row] = bench.value(run(bench, plan, **fields).result)
    assert row["result"]["rows"][1] == {"id": 1, "name": "n1"}
    bench = Bench(giving(300_000))
    [row] = bench.value(run(bench, plan, **fields).result)
    assert row["error"]["code"] == "RESULT_TOO_LARGE"


def manifest(
    bench: Bench, parts: dict[int, list[int]], name: str = "m", before: Reference | None = None
) -> Reference:
    """Of a loop with parts that have rows with these indexes."""
    made = [] if before is None else [AddPart(name, -1, 0, before)]
    for first, indexes in parts.items():
        rows = [{"index": n, "status": "ok", "result": f"{name}{n}"} for n in indexes]
        reference = bench.put(rows, step="each", key=f"{name}{first}").reference
        assert reference is not None
        made.append(AddPart(name, first, len(rows), reference))
    bench.parts[name] = made
    total = 1 + max((n for indexes in parts.values() for n in indexes), default=-1)
    uri = f"noetl://execution/77/manifest/each/{name}"
    return Reference(ref_id=RefId(name), type="db", uri=uri, rows=total, format="manifest")


def read_range(bench: Bench, reference: Reference, start: int, stop: int) -> list[Any]:
    return asyncio.run(
        ResultReader(bench.store, bench.env.manifests).read_item_range(reference, start, stop)
    )


def test_items_of_a_loop_are_read_from_the_parts_that_have_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(data, "MAX_DEFERRED_ITEMS", 10)
    bench = Bench(store=WatchedStore())
    whole = manifest(
        bench, {first: list(range(first, first + 100)) for first in range(0, 1000, 100)}
    )
    assert read_range(bench, whole, 250, 252) == ["m250", "m251"]
    assert bench.store.asked == [(50, 52)]
    assert read_range(bench, whole, 195, 205) == [f"m{n}" for n in range(195, 205)]


def test_items_that_were_put_off_are_found_where_they_came_back() -> None:
    bench = Bench()
    gone = [2, 3, 50]
    put_off = manifest(
        bench,
        {0: [n for n in range(100) if n not in gone], 2: [2], 3: [3], 50: [50], 100: [100, 101]},
    )
    for start, stop in ((0, 102), (2, 4), (4, 5), (49, 52), (97, 102), (99, 100)):
        assert read_range(bench, put_off, start, stop) == [f"m{n}" for n in range(start, stop)]


def test_an_item_that_never_ran_is_null_and_one_that_ran_again_stands_over() -> None:
    bench = Bench()
    first = manifest(bench, {0: [0, 1, 2], 5: [5]}, "old")
    assert read_range(bench, first, 0, 6) == ["old0", "old1", "old2", None, None, "old5"]
    again = manifest(bench, {0: [1, 4]}, "new", before=first)
    assert read_range(bench, again, 0, 6) == ["old0", "new1", "old2", None, "new4", "old5"]


# ---- memory ----------------------------------------------------------------------------------------------------------------


def test_what_was_read_leaves_between_templates_when_it_is_too_much(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test() -> None:
        monkeypatch.setattr(data, "MAX_KEPT_BYTES", 150_000)
        store = ResultsMemory()
        payloads = ResultReader(store, read_no_manifest)
        references = [
            await store.put(Address("7", "result", "s", f"k{n}"), list(range(1000)))
            for n in range(3)
        ]
        for reference in references:
            await payloads.load(data.WholeValue(reference))
        assert all(map(payloads.is_in_memory, references))
        payloads.get_whole(references[0])
        payloads.trim()
        assert [payloads.is_in_memory(reference) for reference in references] == [
            True,
            False,
            False,
        ]
        with pytest.raises(NeedsData):
            payloads.get_rows(references[1], 0, 1)
        await payloads.load(RowRange(references[1], 0, 1))
        assert (
            LazyResult(Envelope(status="ok", reference=references[1]), payloads).read_item(0) == 0
        )

    asyncio.run(test())


# ---- duckdb ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [10, 200_000])
@pytest.mark.parametrize("given", ["{{ up }}", "{{ up.rows }}"])
def test_a_stored_row_set_is_a_table_of_duckdb(count: int, given: str) -> None:
    bench = Bench(store=WatchedStore(), more=[Duckdb()])
    up = upstream(bench, count)
    bench.store.asked.clear()
    plan = plan_of(
        "- step: up\n  tool: {kind: python, code: x}\n- step: s\n  tool:\n    kind: duckdb\n"
        f'    inputs: {{t: "{given}", u: [{{id: 7}}]}}\n'
        "    query: SELECT sum(id) AS s, count(*) AS n, (SELECT max(t.id) FROM t JOIN u USING (id)) AS j FROM t\n"
    )
    report = run(bench, plan, results={"up": up})
    assert isinstance(report, e.CommandCompleted), report
    assert bench.value(report.result)["rows"] == [
        {"s": count * (count - 1) // 2, "n": count, "j": 7}
    ]
    assert bench.store.asked[0] == "open"
    assert "whole" not in bench.store.asked[:-1]
    assert bench.refs[-1].inputs == (up.reference.ref_id,)


# ---- sinks -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", ["{{ up }}", "{{ up.rows }}"])
def test_a_sink_reads_the_rows_of_a_table_by_batches(data: str) -> None:
    taken: list[list[Any]] = []

    class Taking:
        kind = "sink"
        raw = frozenset({"data"})

        async def run(self, call: Call) -> Success:
            assert call.rendering is not None
            found = unwrap_result(await call.rendering.rows(call.config["data"]))
            assert isinstance(found, tools.Rows)
            async for batch in found.batches(7):
                taken.append(batch)
            return Success(None)

    bench = Bench(more=[Taking()])
    plan = plan_of(
        f"- step: s\n  tool: {{kind: sink, target: {{kind: file, path: x}}, data: '{data}'}}\n- {{step: up}}\n"
    )
    run(bench, plan, results={"up": upstream(bench, 20)})
    assert [len(batch) for batch in taken] == [7, 7, 6]
    assert [row["id"] for batch in taken for row in batch] == list(range(20))


ODD = pa.schema(
    [("d", pa.date32()), ("m", pa.decimal128(12, 2)), ("u", pa.uuid()), ("b", pa.binary()), ("n", pa.int32()),
     ("f", pa.float64()), ("s", pa.duration("us")), ("j", pa.json_())]
)  # fmt: skip


def odd(count: int) -> Callable[[Call], Success]:
    row = [
        date(2024, 2, 29),
        Decimal("12.50"),
        UUID(int=1).bytes,
        b"\x00",
        None,
        math.nan,
        timedelta(days=1),
        "[1]",
    ]

    def give(call: Call) -> Success:
        columns = [
            pa.array([value] * count, kind) for value, kind in zip(row, ODD.types, strict=True)
        ]
        writer = RowSetWriter(ODD, call.tables)
        writer.write(pa.RecordBatch.from_arrays(columns, schema=ODD))
        return Success(writer.finish())

    return give


@pytest.mark.parametrize("data", ["{{ up }}", "{{ up.rows }}"])
@pytest.mark.parametrize("count", [0, 3, 70_000])
def test_a_sink_keeps_the_types_of_a_table(tmp_path: Path, data: str, count: int) -> None:
    def fail_if_used() -> Any:
        raise AssertionError

    for ending in ("parquet", "csv"):
        made = Bench(odd(count))
        up = run(made, plan_of("- step: up\n  tool: {kind: python, code: x}\n"), step="up").result
        target = f"{{kind: file, path: {tmp_path}/x.{ending}, mode: replace}}"
        plan = plan_of(
            f"- step: s\n  tool: {{kind: sink, target: {target}, data: '{data}'}}\n- {{step: up}}\n"
        )
        report = run(
            Bench(store=made.store, more=[SinkTool(fail_if_used, fail_if_used)]),
            plan,
            results={"up": up},
        )
        assert isinstance(report, e.CommandCompleted), report
    assert pq.read_schema(tmp_path / "x.parquet").equals(ODD)
    assert pq.read_metadata(tmp_path / "x.parquet").num_rows == count
    lines = (tmp_path / "x.csv").read_text().splitlines()
    assert lines[0] == "d,m,u,b,n,f,s,j"
    assert lines[1:] == [f"2024-02-29,12.50,{UUID(int=1)},AA==,,nan,86400.0,[1]"] * count
