"""Items of a loop: order, side by side, failures, reducers, progress, deferred items, frames."""

import asyncio
from typing import Any

import msgspec
import pytest

from noetl.model import events as e
from noetl.model.decisions import AddPart
from noetl.model.envelope import NOT_WRITTEN, Envelope
from noetl.model.events import Collection
from noetl.model.ids import RefId, gathered_id
from noetl.model.reference import Reference
from noetl.playbook.assignments import make_link
from noetl.playbook.plan import Plan
from noetl.tools.port import Call, Success
from tests.unit.pipeline.bench import Bench, Scripted, failing, plan_of, resume_journal
from tests.waiting import run_virtually


def loop(spec: str = "mode: parallel", tool: str = "", more: str = "") -> Plan:
    return plan_of(
        f"- step: s\n  loop: {{in: [1], iterator: row, spec: {{{spec}}}{more}}}\n"
        f'  tool: {{kind: python, code: x, input: {{row: "{{{{ row }}}}", at: "{{{{ loop.index }}}}"}}{tool}}}\n'
    )


def chunk(count: int, together: int = 1, first: int = 0, **more: Any) -> dict[str, Any]:
    fields = {
        "kind": "chunk",
        "first": first,
        "count": count,
        "together": together,
        "size": first + count,
    }
    return {**fields, "items": tuple(f"i{n}" for n in range(first, first + count)), **more}


def rows(bench: Bench, envelope: Envelope) -> list[Any]:
    return [(row["index"], row["status"]) for row in bench.value(envelope) or []]


def test_a_chunk_reports_one_payload_with_a_row_per_item() -> None:
    bench = Bench()
    report = bench.run(loop(), **chunk(3, first=4))
    assert isinstance(report, e.CommandCompleted)
    [first, *_] = bench.value(report.result)
    assert first == {
        "index": 4,
        "status": "ok",
        "error": None,
        "ms": 0,
        "tries": 1,
        "result": {"row": "i4", "at": 4},
    }
    assert (report.items.first, report.items.ok, report.items.failed) == (4, 3, 0)
    assert bench.journal == []


def test_items_that_end_well_in_spite_of_an_error_are_counted_as_recovered() -> None:
    rule = ", spec: {policy: {rules: [{else: {do: continue}}]}}"
    bench = Bench(lambda call: failing() if call.input["at"] in (1, 2) else {"v": 1})
    report = bench.run(loop(tool=rule), **chunk(4))
    assert (report.items.ok, report.items.failed) == (4, 0)
    assert (report.items.recovered.count, report.items.recovered.code, report.recovered) == (
        2,
        "BOOM",
        None,
    )


def test_items_come_from_the_collection_by_range() -> None:
    bench = Bench()
    stored = bench.put(["a", "b", "c", "d"])
    collection = Collection(kind="reference", size=4, reference=stored.reference)
    report = bench.run(loop(), **chunk(2, first=1, items=(), collection=collection))
    assert [row["result"]["row"] for row in bench.value(report.result)] == ["b", "c"]


def test_a_collection_that_is_gone_fails_the_command() -> None:
    gone = Reference(
        ref_id=RefId("1"), type="memory", uri="noetl://execution/77/collection/s/gone", rows=4
    )
    report = Bench().run(
        loop(),
        **chunk(2, items=(), collection=Collection(kind="reference", size=4, reference=gone)),
    )
    assert isinstance(report, e.CommandFailed)
    assert report.result.error is not None
    assert (report.result.error.code, report.items) == ("COLLECTION_LOST", None)


def test_failed_items_of_an_earlier_loop_keep_their_indexes() -> None:
    bench = Bench()
    part = bench.put(
        [{"index": 0, "status": "ok"}, {"index": 1, "status": "error"}], step="s"
    ).reference
    assert part is not None
    bench.parts["old"] = [AddPart("old", 0, 2, part)]
    manifest = Reference(
        ref_id=RefId("9"),
        type="db",
        uri="noetl://execution/77/manifest/s/old",
        rows=3,
        format="manifest",
    )
    collection = Collection(kind="failed", size=2, items=("a", "b", "c"), manifest=manifest)
    report = bench.run(loop(), **chunk(2, items=(), collection=collection))
    assert [(row["index"], row["result"]["row"]) for row in bench.value(report.result)] == [
        (1, "b"),
        (2, "c"),
    ]
    assert report.items.indexes == (1, 2)


def test_so_many_together_and_no_more() -> None:
    running, most = 0, 0

    async def run_slowly(call: Call) -> Any:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1

    report = Bench(run_slowly).run(loop(), **chunk(7, together=3))
    assert (most, report.items.ok) == (3, 7)


@pytest.mark.parametrize("together", [1, 3])
def test_the_first_failure_stops_the_chunk_and_what_did_not_run_is_not_counted(
    together: int,
) -> None:
    async def second_fails(call: Call) -> Any:
        if call.input["row"] == "i1":
            return failing()
        await asyncio.sleep(5 if call.input["row"] == "i2" else 0)
        return 1

    bench = Bench(second_fails)
    report = bench.run(loop(), **chunk(6, together=together, stop_on_failure=True))
    assert rows(bench, report.result) == [(0, "ok"), (1, "error")]
    assert (report.items.ok, report.items.failed, report.items.skipped) == (1, 1, 0)
    assert (report.items.first_failed, report.items.first_error.code) == (1, "BOOM")


def test_without_stopping_every_item_has_its_row() -> None:
    bench = Bench(lambda call: failing() if call.input["row"] == "i1" else 1)
    report = bench.run(loop(), **chunk(3))
    assert rows(bench, report.result) == [(0, "ok"), (1, "error"), (2, "ok")]
    assert bench.value(report.result)[1]["error"]["code"] == "BOOM"


def test_an_item_all_of_whose_tasks_are_passed_over_is_skipped() -> None:
    bench = Bench()
    report = bench.run(loop(tool=", spec: {when: \"{{ row != 'i0' }}\"}"), **chunk(2))
    assert rows(bench, report.result) == [(0, "skipped"), (1, "ok")]
    assert (report.items.ok, report.items.skipped) == (1, 1)


def test_writes_of_parallel_items_are_reduced_in_item_order() -> None:
    async def later_first(call: Call) -> Any:
        await asyncio.sleep(1 - call.input["at"] / 10)
        return call.input["at"]

    spec = "mode: parallel, reduce: {ctx.total: sum, ctx.all: append}"
    plan = loop(spec, tool=', set: {ctx.total: "{{ result }}", all: "{{ result }}"}')
    bench = Bench(later_first)
    report = bench.run(plan, **chunk(4, together=4))
    assert report.items.partial == {"ctx.total": 6}
    assert bench.value(Envelope(status="ok", reference=report.items.gathered)) == {
        "ctx.all": [0, 1, 2, 3]
    }
    assert report.set == {}


def test_gathered_reductions_are_joined_in_item_order_onto_the_current_value() -> None:
    plan = loop(
        "mode: parallel, reduce: {ctx.a.seen: append, ctx.last: last, ctx.total: sum, ctx.none: merge}"
    )
    bench = Bench()
    first = bench.put({"ctx.a.seen": [1], "ctx.last": {"n": 1}}, key="g0").reference
    then = bench.put({"ctx.a.seen": [2, 3], "ctx.last": {"n": 3}}, key="g1").reference
    before = bench.put({"ctx.a.seen": [0]}, key="b0").reference
    manifest = Reference(
        ref_id=RefId("old"), type="db", uri="noetl://execution/7/manifest/s/old", format="manifest"
    )
    assert first is not None
    assert then is not None
    assert before is not None
    gathered = gathered_id("ac7")
    bench.parts |= {
        gathered: [
            AddPart(gathered, 4, 0, then),
            AddPart(gathered, 0, 0, first),
            AddPart(gathered, -1, 0, manifest),
        ],
        "old": [AddPart("old", 2, 0, before)],
    }
    kept = bench.put(["z"], key="ctx").reference
    assert kept is not None
    ctx = {"a": {"seen": make_link(kept)}, "total": 100}
    segments = [[0, {"ctx.total": 5}], [4, {"ctx.total": 1}]]
    report = bench.run(
        plan, kind="evaluate", site="reduce", site_args={"segments": segments}, ctx=ctx
    )
    seen, last, none, total = report.values  # by name
    assert run_virtually(bench.store.resolve(seen.stored)) == ["z", 0, 1, 2, 3]
    assert run_virtually(bench.store.resolve(last.stored)) == {"n": 3}
    assert (none, total.value) == (NOT_WRITTEN, 106)


@pytest.mark.parametrize(("value", "stored"), [("text of a row", True), (7, False), (None, False)])
def test_text_that_last_keeps_is_stored(value: Any, stored: bool) -> None:
    bench = Bench()
    part = bench.put({"ctx.last": value}, key="g0").reference
    assert part is not None
    gathered = gathered_id("ac7")
    bench.parts[gathered] = [AddPart(gathered, 0, 0, part)]
    plan = loop("mode: parallel, reduce: {ctx.last: last}")
    (last,) = bench.run(plan, kind="evaluate", site="reduce", site_args={"segments": []}).values
    assert (last.stored is not None) is stored
    assert (run_virtually(bench.store.resolve(last.stored)) if stored else last.value) == value


def test_reductions_that_cannot_be_joined_are_reported_as_an_error() -> None:
    bench = Bench()
    part = bench.put({"ctx.all": {"k": 1}}, key="g0").reference
    assert part is not None
    gathered = gathered_id("ac7")
    bench.parts[gathered] = [AddPart(gathered, 0, 0, part)]
    report = bench.run(
        loop("mode: parallel, reduce: {ctx.all: merge}"),
        kind="evaluate", site="reduce", site_args={"segments": []}, ctx={"all": [1]},
    )  # fmt: skip
    assert "merge cannot join a list and a map" in report.values[0].error


def test_a_text_that_is_too_long_for_an_event_does_not_fit_max() -> None:
    plan = loop(
        "mode: parallel, reduce: {ctx.most: max}", tool=", set: {ctx.most: \"{{ 'x' * 300 }}\"}"
    )
    report = Bench().run(plan, **chunk(1))
    assert report.items.first_error.code == "REDUCE_FAILED"


def test_a_write_that_does_not_fit_its_reducer_fails_its_item() -> None:
    plan = loop("mode: parallel, reduce: {ctx.total: sum}", tool=", set: {ctx.total: text}")
    report = Bench().run(plan, **chunk(2))
    assert (report.items.failed, report.items.first_error.code, report.items.partial) == (
        2,
        "REDUCE_FAILED",
        {},
    )


def test_later_items_of_a_sequential_loop_see_earlier_writes() -> None:
    plan = loop("mode: sequential", tool=', set: {ctx.n: "{{ ctx.n | default(0) + 1 }}"}')
    report = Bench().run(plan, ctx={"n": 10}, **chunk(3))
    assert report.set == {"ctx.n": 13}


RETRY = ", spec: {policy: {rules: [{when: \"{{ output.status == 'error' }}\", then: {do: retry, attempts: 3, delay: %s}}]}}"


def test_an_item_with_a_long_retry_leaves_its_chunk() -> None:
    bench = Bench(lambda call: failing() if call.input["row"] == "i1" else 1)
    report = bench.run(loop(tool=RETRY % "6s"), **chunk(3, stop_on_failure=True))
    assert rows(bench, report.result) == [(0, "ok"), (2, "ok")]
    assert report.items.deferred == (e.Deferred(1, 1, 6_000_000),)
    assert (report.items.ok, report.items.failed) == (2, 0)


def test_a_deferred_item_comes_back_with_its_tries() -> None:
    bench = Bench(lambda call: failing())
    report = bench.run(loop(tool=RETRY % "6s"), **chunk(1, first=1, attempts=2))
    assert [call.identity.attempt for call in bench.tool.calls] == [3]
    assert report.items.failed == 1


def test_a_short_retry_is_waited_for_inside_the_chunk() -> None:
    bench = Bench(lambda call: failing() if call.identity.attempt < 3 else 1)
    report = bench.run(loop(tool=RETRY % "100ms"), **chunk(2))
    assert [row["tries"] for row in bench.value(report.result)] == [3, 3]


def test_progress_is_journaled_once_a_second_and_the_report_covers_the_rest() -> None:
    async def run_slowly(call: Call) -> Any:
        await asyncio.sleep(0.4)
        return call.input["at"]

    plan = loop("mode: parallel, reduce: {ctx.t: sum}", tool=', set: {ctx.t: "{{ result }}"}')
    bench = Bench(run_slowly)
    report = bench.run(plan, **chunk(7))
    assert [(entry.done, entry.items.first, entry.items.ok) for entry in bench.journal] == [
        (3, 0, 3),
        (6, 3, 3),
    ]
    assert [entry.items.partial for entry in bench.journal] == [{"ctx.t": 3}, {"ctx.t": 12}]
    assert (report.items.first, report.items.ok, report.items.partial) == (6, 1, {"ctx.t": 6})
    assert rows(bench, report.result) == [(6, "ok")]
    again = Bench(run_slowly)
    second = again.run(plan, attempt=2, journal=resume_journal(bench.journal[:1]), **chunk(7))
    assert [call.input["at"] for call in again.tool.calls] == [3, 4, 5, 6]
    assert second.items.ok + sum(entry.items.ok for entry in again.journal) == 4


def test_an_entry_on_its_way_when_the_chunk_stops_is_not_reported_again() -> None:
    async def third_fails_late(call: Call) -> Any:
        await asyncio.sleep(1.2 if call.input["at"] < 2 else 1.3)
        return failing() if call.input["at"] == 2 else 1

    bench = Bench(third_fails_late)
    record = bench._record

    async def slowly(sent: Any) -> None:
        await record(sent)
        await asyncio.sleep(1)  # recorded, but the answer takes its time

    bench._record = slowly  # type: ignore[method-assign]
    report = bench.run(loop(), **chunk(6, together=3, stop_on_failure=True))
    [entry] = bench.journal
    assert entry.items.ok + report.items.ok == 2
    assert (report.items.first, report.items.failed) == (entry.done, 1)


def test_progress_counts_only_up_to_the_first_unfinished_item() -> None:
    async def first_is_slow(call: Call) -> Any:
        await asyncio.sleep(5 if call.input["at"] == 0 else 0.6)

    bench = Bench(first_is_slow)
    report = bench.run(loop(), **chunk(6, together=2))
    assert bench.journal == []
    assert report.items.ok == 6


def test_a_lone_item_that_waits_is_parked_and_goes_on() -> None:
    plan = plan_of(
        "- step: s\n  loop: {in: [1], iterator: row, spec: {mode: parallel, reduce: {ctx.n: sum}}}\n  tool:\n"
        '  - {name: a, kind: python, code: x, input: {v: "{{ row }}"}, set: {ctx.n: 2, iter.k: 5}}\n'
        "  - {name: w, kind: wait, duration: 3s}\n"
        '  - {name: b, kind: python, code: x, input: {k: "{{ iter.k }}", a: "{{ a.v }}"}}\n'
    )
    bench = Bench()
    parked = bench.run(plan, **chunk(1))
    assert (parked.reason, parked.delay) == ("time", 3_000_000)
    journal = msgspec.structs.replace(
        resume_journal(bench.journal), resolved=Envelope(status="ok", context={"value": None})
    )
    report = bench.run(plan, attempt=2, journal=journal, **chunk(1))
    assert bench.value(report.result)[0]["result"] == {"k": 5, "a": "i0"}
    assert report.items.partial == {"ctx.n": 2}


def test_items_that_wait_cannot_share_a_command() -> None:
    plan = plan_of(
        "- step: s\n  loop: {in: [1], iterator: row}\n  tool: {kind: wait, duration: 3s}\n"
    )
    report = Bench().run(plan, **chunk(2))
    assert (report.items.failed, report.items.first_error.code) == (2, "CANNOT_WAIT")


# ---- frames ------------------------------------------------------------------------------------------------------------


def cursor() -> Plan:
    return plan_of(
        "- step: s\n"
        "  loop: {iterator: row, cursor: {kind: postgres, claim: 'update … returning'}, spec: {mode: cursor, frame: 2}}\n"
        '  tool: {kind: python, code: x, input: {row: "{{ row.id }}"}}\n'
    )


def claiming(*found: Any) -> Scripted:
    return Scripted(
        lambda call: Success({"rows": list(found)}), kind="postgres", raw=frozenset({"query"})
    )


def test_a_frame_is_stored_and_journaled_before_its_first_item() -> None:
    claims = claiming({"id": 7}, {"id": 8})
    bench = Bench(more=[claims])
    bench.does = lambda call: len(bench.journal)
    report = bench.run(cursor(), kind="frame", count=2, first=4)
    [claimed] = bench.of(e.FrameClaimed)
    assert claims.calls[0].config["query"] == "update … returning"
    assert claimed.size == 2
    assert [(row["index"], row["result"]) for row in bench.value(report.result)] == [(4, 1), (5, 1)]
    assert (report.items.claimed, report.items.ok) == (2, 2)


def test_a_new_attempt_works_on_the_frame_that_was_claimed() -> None:
    first = Bench(more=[claiming({"id": 7}, {"id": 8})])
    first.run(cursor(), kind="frame", count=2)
    claims = claiming({"id": 9})
    second = Bench(more=[claims], store=first.store)
    report = second.run(
        cursor(), kind="frame", count=2, attempt=2, journal=resume_journal(first.journal)
    )
    assert claims.calls == []
    assert [row["result"] for row in second.value(report.result)] == [{"row": 7}, {"row": 8}]
    assert report.items.claimed == 2


def test_an_empty_claim_ends_the_frame() -> None:
    bench = Bench(more=[claiming()])
    report = bench.run(cursor(), kind="frame", count=2)
    assert (report.items.claimed, report.result.reference, bench.journal) == (0, None, [])


# ---- items that go back ------------------------------------------------------------------------------------------------


def test_an_item_that_goes_back_goes_on_where_it_was() -> None:
    """What it claimed before its worker was lost is not claimed again."""
    plan = plan_of(
        "- step: s\n  loop: {in: [1], iterator: row, spec: {mode: parallel}}\n  tool:\n"
        "  - {name: claim, kind: python, code: x}\n"
        '  - {name: keep, kind: sink, target: {kind: file, path: x}, data: "{{ claim }}", spec: {policy: {rules: [{then: '
        '{do: jump, to: claim}, when: "{{ claim.n < 3 }}"}]}}}\n'
    )
    claimed = iter(range(1, 9))
    sink = Scripted(lambda call: None, kind="sink", raw=frozenset())
    bench = Bench(lambda call: {"n": next(claimed)}, more=[sink])
    bench.run(plan, **chunk(1))
    kept = [(call.config["data"]["n"], call.key) for call in sink.calls]
    assert [number for number, _ in kept] == [1, 2, 3]
    lost = [entry for entry in bench.journal if isinstance(entry, e.TaskDone)][
        :3
    ]  # 1 is stored, 2 is claimed
    sink.calls.clear()
    bench.run(plan, attempt=2, journal=resume_journal(lost), **chunk(1))
    assert [(call.config["data"]["n"], call.key) for call in sink.calls][0] == kept[1]


def test_an_item_that_polls_slowly_holds_no_worker_and_goes_on() -> None:
    plan = plan_of(
        "- step: s\n  loop: {in: [1], iterator: row, spec: {mode: parallel}}\n"
        '  tool: {kind: python, code: x, spec: {paginate: {when: "{{ response.more }}", delay: 30s}}}\n'
    )
    asked = iter([{"more": True}, {"more": False, "job": 7}])
    bench = Bench(lambda call: next(asked))
    parked = bench.run(plan, **chunk(1))
    assert (parked.reason, parked.delay) == ("retry", 30_000_000)
    report = bench.run(plan, attempt=2, journal=resume_journal(bench.journal), **chunk(1))
    assert bench.value(report.result)[0]["result"] == {"more": False, "job": 7}
