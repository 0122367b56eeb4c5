"""What stands beside a result: the tool that made it, the input it was given, and what the author says of it."""

from typing import Any

from noetl.model import events as e
from noetl.model.codec import encode
from noetl.model.commands import Journal
from noetl.model.decisions import AddPart
from noetl.model.envelope import Envelope, Input, Meta
from noetl.model.errors import StoreUnavailable
from noetl.model.ids import RefId
from noetl.model.reference import Address, Reference, parse_uri
from noetl.pipeline.output.provenance import MAX_INLINE_INPUT_BYTES, describe_tool
from noetl.results.tiers.memory import ResultsMemory
from noetl.tools.noop import Noop
from tests.unit.pipeline.bench import Bench, failing, plan_of


def one(given: str, more: str = "") -> Any:
    return plan_of(f"- step: s\n  tool: {{kind: python, code: x, input: {given}{more}}}\n")


def given_to(report: Any) -> Input | None:
    return report.result.meta.input


def test_every_envelope_names_its_tool_once_and_for_all() -> None:
    tool = Bench().run(one("{}")).result.meta.tool
    assert list(tool) == ["kind", "version", "noetl", "runtime"]
    assert (tool["kind"], tool["runtime"].partition(" ")[0]) == ("python", "cpython")
    assert len(encode(tool)) < 120
    assert describe_tool("noop", Noop()) is describe_tool("noop", Noop())
    assert describe_tool("noop", Noop())["version"] == describe_tool("noop", Noop())["noetl"] != ""


def test_what_the_author_says_is_rendered_into_the_envelope() -> None:
    report = Bench().run(
        one("{}", ', provenance: {source: "{{ workload.n }}", by: ann}'), workload={"n": 3}
    )
    assert report.result.meta.provenance == {"source": 3, "by": "ann"}


LOOP = """
- step: s
  loop: {in: [1], iterator: angle, spec: {mode: parallel}}
  tool: {kind: python, code: x, provenance: {angle: "{{ angle }}", seed: 7, tags: [a]}}
"""


def items_of(count: int) -> dict[str, Any]:
    return {
        "kind": "chunk",
        "first": 0,
        "count": count,
        "together": 2,
        "size": count,
        "items": tuple(range(count)),
    }


def test_each_item_of_a_loop_has_its_provenance_and_the_envelope_what_they_share() -> None:
    bench = Bench(lambda call: 1)
    report = bench.run(plan_of(LOOP), **items_of(3))
    rows = bench.value(report.result)
    assert [row["provenance"] for row in rows] == [
        {"angle": n, "seed": 7, "tags": ["a"]} for n in range(3)
    ]
    assert report.result.meta.provenance == {"angle": "per item", "seed": 7, "tags": "per item"}


def test_an_item_that_fails_has_its_provenance() -> None:
    bench = Bench(lambda call: failing())
    report = bench.run(plan_of(LOOP), **items_of(1))
    (row,) = bench.value(report.result)
    assert (row["status"], row["provenance"]["angle"]) == ("error", 0)
    assert report.result.meta.provenance == {"angle": 0, "seed": 7, "tags": "per item"}


def test_items_without_provenance_have_no_such_column() -> None:
    bench = Bench(lambda call: 1)
    report = bench.run(plan_of(LOOP.partition(", provenance")[0] + "}"), **items_of(2))
    assert ["provenance" in row for row in bench.value(report.result)] == [False, False]
    assert report.result.meta.provenance == {}


def test_a_small_input_of_scalars_stands_in_the_envelope() -> None:
    bench = Bench()
    report = bench.run(one('{a: 1, b: "{{ workload.n }}", c: null, d: true}'), workload={"n": "x"})
    assert given_to(report) == Input(value={"a": 1, "b": "x", "c": None, "d": True})
    assert [ref.reference for ref in bench.refs] == [report.result.reference]


def test_any_other_input_is_a_payload_beside_the_result() -> None:
    for given in ({"text": "x" * MAX_INLINE_INPUT_BYTES}, {"rows": [1]}, {"nested": {"a": 1}}):
        bench = Bench(lambda call: 1)
        report = bench.run(one("{}"), args=given)
        found = given_to(report)
        assert found is not None
        assert found.ref is not None
        assert parse_uri(found.ref).kind == "input"
        stored = {ref.reference.uri: ref for ref in bench.refs}
        assert set(stored) == {found.ref, report.result.reference.uri}
        assert (stored[found.ref].inputs, stored[found.ref].parent) == ((), None)
        assert bench.value(Envelope(status="ok", reference=stored[found.ref].reference)) == given


def test_no_input_leaves_nothing() -> None:
    assert given_to(Bench().run(one("{}"))) is None


def test_keys_that_name_secrets_are_left_out_of_the_envelope_and_others_arrive() -> None:
    report = Bench(lambda call: 1).run(one("{password: p, next_page_token: t}"))
    assert given_to(report) == Input(value={"next_page_token": "t"})


def test_values_of_secrets_are_named_instead_of_shown() -> None:
    bench = Bench(lambda call: 1)
    bench.env.redactor.register_secret("api.token", "hunter2-hunter2")
    bench.env.redactor.register_secret("api.pin", "4711")
    small = bench.run(
        one('{t: "{{ workload.t }}", pin: 4711}'), workload={"t": "a hunter2-hunter2 b"}
    )
    assert given_to(small) == Input(value={"t": "a ***api.token*** b", "pin": "***api.pin***"})
    large = given_to(
        bench.run(one('{t: ["{{ workload.t }}", 4711]}'), workload={"t": "hunter2-hunter2"})
    )
    assert large is not None
    kept = next(ref.reference for ref in bench.refs if ref.reference.uri == large.ref)
    assert bench.value(Envelope(status="ok", reference=kept)) == {
        "t": ["***api.token***", "***api.pin***"]
    }


def test_a_failure_says_what_it_was_given_and_by_which_tool() -> None:
    bench = Bench(lambda call: failing())
    small, large = bench.run(one("{a: 1}")), bench.run(one("{a: [1]}"))
    assert isinstance(small, e.CommandFailed)
    assert (small.result.meta.tool["kind"], given_to(small)) == ("python", Input(value={"a": 1}))
    assert [ref.reference.uri for ref in bench.refs] == [given_to(large).ref]  # type: ignore[union-attr]


class NoInputs(ResultsMemory):
    async def put(self, address: Address, value: Any) -> Reference:
        if address.kind == "input":
            raise StoreUnavailable("memory")
        return await super().put(address, value)


def test_a_failure_is_told_as_it_is_when_its_input_cannot_be_stored() -> None:
    report = Bench(lambda call: failing(), store=NoInputs()).run(one("{a: [1]}"))
    assert report.result.error.code == "BOOM"
    assert (report.result.meta.tool["kind"], given_to(report)) == ("python", None)


def test_items_of_a_loop_leave_no_input_of_their_own() -> None:
    bench = Bench(lambda call: 1)
    text = "- step: s\n  loop: {in: [1], iterator: n}\n  tool: {kind: python, code: x, input: {n: ['{{ n }}']}}\n"
    report = bench.run(plan_of(text), kind="chunk", count=2, size=2, items=(1, 2))
    assert report.result.meta == Meta(tool=describe_tool("python", bench.tool))
    assert {parse_uri(ref.reference.uri).kind for ref in bench.refs} == {"result"}


def test_decisions_do_not_know_what_tasks_were_given() -> None:
    told = Envelope(status="ok", meta=Meta(tool={"kind": "x"}, input=Input(value={"a": 1})))
    assert told.without_input().meta == Meta(tool={"kind": "x"})
    assert told.without_input().without_input() == told.without_input()


def test_a_value_kept_by_reference_counts_as_an_input() -> None:
    bench = Bench(lambda call: 1)
    kept = bench.put([1, 2])
    assert kept.reference is not None
    bench.run(
        one('{n: "{{ ctx.kept | length }}"}'), ctx={"kept": {"$reference": kept.reference.uri}}
    )
    assert bench.refs[-1].inputs == (kept.reference.ref_id,)


def test_what_follows_a_loop_of_a_child_has_its_parts_as_inputs_and_no_parent() -> None:
    bench = Bench(lambda call: sum(call.input["rows"]))
    rows = bench.put([{"index": n, "status": "ok", "result": n} for n in range(3)]).reference
    assert rows is not None
    bench.parts["ac7"] = [AddPart("ac7", 0, 3, rows)]
    uri = "noetl://execution/78/manifest/each/ac7"
    manifest = Reference(ref_id=RefId("ac7"), type="db", uri=uri, rows=3, format="manifest")
    child = Envelope(status="ok", reference=manifest)
    tasks = (
        "- call: {kind: noop}\n  - sum: {kind: python, code: x, input: {rows: '{{ call.rows }}'}}\n"
    )
    journal = Journal(goto=1, runs={"call": 1}, results={"call": child}, prev=child, last=child)
    report = bench.run(plan_of(f"- step: s\n  tool:\n  {tasks}"), journal=journal)
    assert bench.value(report.result) == 3
    assert (bench.refs[-1].parent, bench.refs[-1].inputs) == (None, (rows.ref_id,))


ROWS = [{"n": n, "deep": [n]} for n in range(500)]


def after(given: str) -> Any:
    """With a step `up` before it."""
    return plan_of(
        "- {step: up, tool: {kind: python, code: x}, next: s}\n"
        f"- {{step: s, tool: {{kind: python, code: x, input: {given}}}}}\n"
    )


def kept_input(bench: Bench, report: Any) -> Any:
    found = given_to(report)
    assert found is not None
    reference = next(ref.reference for ref in bench.refs if ref.reference.uri == found.ref)
    return bench.value(Envelope(status="ok", reference=reference))


def test_a_large_stored_value_that_is_given_as_it_is_is_named_and_not_stored_again() -> None:
    bench = Bench(lambda call: 1)
    up = bench.put(ROWS)
    report = bench.run(after('{rows: "{{ up }}", some: "{{ up[:1] }}", k: 1}'), results={"up": up})
    found = kept_input(bench, report)
    assert (found["rows"]["$reference"]["uri"], found["some"], found["k"]) == (
        up.reference.uri,
        ROWS[:1],
        1,
    )  # type: ignore[union-attr]
    assert [call.input["rows"] for call in bench.tool.calls] == [ROWS]


def test_what_is_small_or_changed_is_stored_as_it_is() -> None:
    bench = Bench(lambda call: 1)
    changed = bench.run(after('{rows: "{{ up + [1] }}"}'), results={"up": bench.put(ROWS)})
    assert kept_input(bench, changed) == {"rows": [*ROWS, 1]}
    bench = Bench(lambda call: 1)
    small = bench.run(after('{rows: "{{ up }}"}'), results={"up": bench.put([1, 2])})
    assert kept_input(bench, small) == {"rows": [1, 2]}


def test_an_argument_that_came_by_reference_is_named() -> None:
    bench = Bench(lambda call: 1)
    up = bench.put(ROWS)
    report = bench.run(one("{}"), args={"rows": {"$reference": up.reference.uri}})  # type: ignore[union-attr]
    assert set(kept_input(bench, report)["rows"]) == {"$reference"}
    assert [call.input["rows"] for call in bench.tool.calls] == [ROWS]
