"""Texts of payloads are in no event: not as the input of a task or of a child, not as an item that a child is told of, not as
what an item of a loop keeps or gives. Texts that the log has already stand where they are used, and cost no payload."""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from noetl.model import events as e
from noetl.model.codec import encode
from noetl.model.envelope import Envelope
from noetl.playbook.assignments import is_reference, make_link
from noetl.playbook.plan import Plan
from noetl.tools.http.tool import Http
from tests.unit.pipeline.bench import Bench, Scripted, plan_of, resume_journal

MARK = "CANARY-1"
TASK = "kind: python, code: x"
CHILD = "kind: playbook, path: a/b"
STEPS = """
- {{step: up, tool: {{kind: python, code: x}}, next: s}}
- step: s
  input: {{of_step: "{{{{ workload.word }}}}"}}
  tool: {{{tool}, input: {{x: "{given}", n: "{{{{ up.row_count }}}}"}}}}
"""
IN_LOG = [
    "literal",
    "{{ workload.word }}",
    "{{ word | upper }}-{{ execution_id }}",
    "{{ ctx.short }}",
    "{{ vars.short }} of {{ catalog.path }}",
    "{{ input.of_arc }}",
    "{{ input.of_step }}",
    "{{ state.mark }}",
    "{{ now() }}",
]
OF_PAYLOAD = [
    "{{ up.rows[0].mark }}",
    "{{ up.rows[0].mark | lower }}",
    "x-{{ up.rows[0].mark }}",
    "{{ ctx.stored.mark }}",
    "{{ iter.parent.row }}",
    "{% for row in up.rows %}{{ row.mark }}{% endfor %}",
    "{% set kept = up.rows[0] %}{{ kept.mark }}",
]


def run_plan(tool: str, given: str, bench: Bench, **scope: Any) -> Any:
    plan, known = prepare_plan(tool, given, bench)
    return bench.run(plan, **{**known, **scope})


def prepare_plan(tool: str, given: str, bench: Bench) -> tuple[Plan, dict[str, Any]]:
    plan = plan_of(STEPS.format(tool=tool, given=given), "workload: {word: ''}\n")
    stored = bench.put({"mark": MARK}, key="ctx").reference
    assert stored is not None
    known: dict[str, Any] = {
        "workload": {"word": "word"},
        "ctx": {"short": "short", "stored": make_link(stored)},
        "args": {"of_arc": "text"},
        "state": {"mark": "written"},
        "results": {"up": bench.put([{"n": 1, "mark": MARK}])},
        "outer": {"index": 0, "row": MARK},
    }
    return plan, known


@pytest.mark.parametrize("given", IN_LOG)
def test_text_that_the_log_has_stands_in_the_envelope(given: str) -> None:
    bench = Bench()
    report = run_plan(TASK, given, bench)
    assert report.result.meta.input.value["n"] == 1
    assert report.result.context["x"] == report.result.meta.input.value["x"]
    assert [ref.reference for ref in bench.refs] == [report.result.reference]


@pytest.mark.parametrize("given", OF_PAYLOAD)
def test_text_of_a_payload_is_an_input_by_reference(given: str) -> None:
    bench = Bench()
    report = run_plan(TASK, given, bench)
    assert report.result.error is None
    assert report.result.meta.input.value is None
    assert bench.refs[0].reference.uri == report.result.meta.input.ref
    assert report.result.context == {"n": 1}
    assert MARK.encode() not in encode(report)


@pytest.mark.parametrize("given", IN_LOG)
def test_text_that_the_log_has_goes_to_a_child_in_the_event(given: str) -> None:
    bench = Bench()
    parked = run_plan(CHILD, given, bench)
    assert set(parked.child.workload) == {"x", "n", "of_step", "of_arc"}
    assert (parked.child.reference, bench.refs) == (None, [])


@pytest.mark.parametrize("given", OF_PAYLOAD)
def test_text_of_a_payload_goes_to_a_child_by_reference(given: str) -> None:
    bench = Bench()
    parked = run_plan(
        CHILD,
        given,
        bench,
        outer={"index": 0, "row": make_link(bench.put(MARK, key="o").reference)},
    )
    assert parked.child.workload == {}
    assert MARK.encode() not in encode(parked)
    workload = bench.value(Envelope(status="ok", reference=parked.child.reference))
    assert MARK.lower() in workload["x"].lower()
    assert (workload["n"], workload["of_arc"]) == (1, "text")


def test_result_made_of_rows_shows_no_texts() -> None:
    bench = Bench(lambda call: {"mark": call.input["x"][0]["mark"], "n": 1})
    report = run_plan(TASK, "{{ up.rows }}", bench)
    assert (report.result.context, bench.value(report.result)) == ({"n": 1}, {"mark": MARK, "n": 1})


def test_numbers_of_a_payload_stand_in_the_event() -> None:
    bench = Bench()
    assert run_plan(CHILD, "{{ up.rows[0].n }}", bench).child.workload["x"] == 1
    assert bench.refs == []


@pytest.mark.parametrize("given", ["{{ workload.word }}", "{{ word }}"])
def test_workload_that_came_by_reference_is_of_a_payload(given: str) -> None:
    scope = {"workload": {"word": MARK}, "workload_by_reference": True}
    bench = Bench(lambda call: {"found": MARK, "n": 1})
    report = run_plan(TASK, given, bench, **scope)
    assert report.result.context == {"n": 1}
    assert MARK.encode() not in encode(report)
    assert MARK.encode() not in encode(run_plan(CHILD, given, Bench(), **scope).child.workload)


@pytest.mark.parametrize("shadow", ["step", "task"])
def test_step_or_task_named_like_a_workload_key_is_of_a_payload(shadow: str) -> None:
    bench = Bench(lambda call: MARK)
    step, task = ("word", "other") if shadow == "step" else ("other", "word")
    plan = plan_of(
        f"- {{step: {step}, tool: {{kind: python, code: x}}, next: s}}\n"
        "- step: s\n  tool:\n"
        f"  - {{name: {task}, kind: python, code: x}}\n"
        '  - {name: call, kind: playbook, path: a/b, input: {x: "{{ word }}"}}\n',
        "workload: {word: ''}\n",
    )
    parked = bench.run(plan, workload={"word": "word"}, results={step: bench.put(MARK)})
    assert bench.value(Envelope(status="ok", reference=parked.child.reference)) == {"x": MARK}


@pytest.mark.parametrize("given", OF_PAYLOAD)
def test_error_shows_the_template_of_an_address_that_reads_a_payload(given: str) -> None:
    bench = Bench(more=[Http()])
    report = run_plan("kind: http, url: 'demo://shop/" + given + "?q=1'", "1", bench)
    error = report.result.error
    assert error.message == f"GET demo://shop/{given} answered 404 Not Found"
    assert MARK.encode() not in encode(
        replace(report, result=replace(report.result, error=replace(error, detail={})))
    )


@pytest.mark.parametrize(
    "given", ["word", "{{ workload.word }}", "{{ ctx.short }}", "{{ input.of_arc }}"]
)
def test_error_shows_an_address_that_the_log_has(given: str) -> None:
    report = run_plan("kind: http, url: 'demo://shop/" + given + "'", "1", Bench(more=[Http()]))
    assert "{{" not in report.result.error.message
    assert report.result.error.message.startswith("GET demo://shop/")


@pytest.mark.parametrize(
    ("collection", "shown"),
    [
        (None, "GET demo://shop/CANARY-1 answered"),
        ("stored", "GET demo://shop/{{ mark }} answered"),
    ],
)
def test_error_of_an_item_shows_it_if_the_log_has_it(collection: str | None, shown: str) -> None:
    plan = plan_of(
        '- step: s\n  loop: {in: "{{ workload.marks }}", iterator: mark}\n'
        "  tool: {kind: http, url: 'demo://shop/{{ mark }}'}\n",
        "workload: {marks: []}\n",
    )
    bench = Bench(more=[Http()])
    fields: dict[str, Any] = {"kind": "chunk", "count": 1, "size": 1, "items": (MARK,)}
    if collection is not None:
        stored = e.Collection(kind="reference", size=1, reference=bench.put([MARK]).reference)
        fields |= {"collection": stored, "items": ()}
    report = bench.run(plan, **fields)
    assert report.items.first_error.message.startswith(shown)


@pytest.mark.parametrize("url", ["{{ up.rows[0].mark }}", "http://{{ up.rows[0].mark }}:1/x"])
def test_error_of_an_address_that_cannot_be_asked_shows_its_template(url: str) -> None:
    bench = Bench(more=[Http()])
    plan, known = prepare_plan("kind: http, url: '" + url + "'", "1", bench)
    report = asyncio.run(bench.execute(plan, **known))
    assert url in report.result.error.message
    assert MARK.encode() not in encode(report)


@pytest.mark.parametrize("kind", ["sink", "transfer"])
@pytest.mark.parametrize(
    ("place", "shown"), [("{{ workload.word }}", True), ("{{ up.rows[0].mark }}", False)]
)
def test_place_that_reads_a_payload_is_not_in_the_context(
    kind: str, place: str, shown: bool
) -> None:
    read = "data: '{{ up.rows }}'" if kind == "sink" else "source: {ref: '{{ up.ref }}'}"
    tool = f"kind: {kind}, {read}, target: {{kind: file, path: '{place}', mode: replace}}"
    written = {"path": "of the target", "row_count": 1}
    bench = Bench(
        more=[
            Scripted(
                lambda call: dict(written), kind=kind, raw=frozenset({"data", "source", "target"})
            )
        ]
    )
    plan = plan_of(
        "- {step: up, tool: {kind: python, code: x}, next: s}\n"
        f"- {{step: s, tool: [{{name: a, {tool}}}, {{name: b, kind: noop}}]}}\n",
        "workload: {word: ''}\n",
    )
    bench.run(plan, workload={"word": "word"}, results={"up": bench.put([{"mark": MARK}])})
    (entry,) = bench.of(e.TaskDone)
    assert ("path" in entry.result.context) is shown
    assert bench.value(entry.result) == written


LOOP = """
- step: s
  loop: {in: "{{ workload.marks }}", iterator: mark, spec: {mode: parallel, reduce: {ctx.all: append, ctx.most: max}}}
  tool:
  - name: t
    kind: python
    code: x
    set: {iter.kept: "{{ mark }}", ctx.all: "{{ mark }}", ctx.most: "{{ workload.word }}"}
  - {name: call, kind: playbook, path: a/b, input: {x: "{{ iter.kept }}{{ t.mark }}"}}
"""


def test_item_of_a_loop_leaves_no_text_in_events() -> None:
    plan = plan_of(LOOP, "workload: {marks: [], word: ''}\n")
    bench = Bench(lambda call: {"mark": MARK, "n": 1})
    marks = bench.put([MARK, MARK]).reference
    collection = e.Collection(kind="reference", size=2, reference=marks)
    fields: dict[str, Any] = {"kind": "chunk", "count": 1, "size": 2, "collection": collection}
    parked = bench.run(plan, workload={"word": "most"}, **fields)
    (entry,) = bench.of(e.TaskDone)
    assert entry.result.context == {"n": 1}
    assert is_reference(entry.set["iter.kept"])
    assert entry.set["iter._reduced"][1] == ["ctx.most", "most"]
    assert MARK.encode() not in encode(entry) + encode(parked)
    assert bench.follow_link(parked.child.iter["mark"]) == MARK
    assert bench.value(Envelope(status="ok", reference=parked.child.reference)) == {
        "x": MARK + MARK
    }

    answered = replace(
        resume_journal([entry]), resolved=Envelope(status="ok", context={"value": 3})
    )
    report = bench.run(plan, workload={"word": "most"}, attempt=2, journal=answered, **fields)
    assert bench.value(Envelope(status="ok", reference=report.items.gathered)) == {
        "ctx.all": [MARK]
    }
