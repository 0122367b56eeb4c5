"""Selections, limits, redaction, a store that fails; and what a worker evaluates for the server."""

from typing import Any

from msgspec import structs

from noetl.model import events as e
from noetl.model.codec import encode
from noetl.model.envelope import Envelope
from noetl.model.errors import Failure, StoreUnavailable
from noetl.model.reference import Lifetime, Reference
from noetl.pipeline.failures import limit_failure
from noetl.playbook.plan import Plan
from noetl.results.tiers.memory import ResultsMemory
from noetl.tools.port import Success
from tests.unit.pipeline.bench import Bench, failing, plan_of
from tests.waiting import run_virtually


def plan_arcs(*guards: str) -> Plan:
    arcs = ", ".join(f'{{step: last, when: "{{{{ {guard} }}}}"}}' for guard in guards)
    return plan_of(
        f"- step: s\n  tool: {{kind: python, code: x}}\n  next: [{arcs}]\n- step: last\n"
    )


def selections(plan: Plan, envelope: Envelope) -> dict[str, Any]:
    return {found.source: envelope.find_selection(found.id) for found in plan.steps["s"].selections}


def test_selections_are_values_missing_or_errors() -> None:
    plan = plan_arcs("output.data.n > 3", "s.nope == 1", "result.n | first")
    found = selections(plan, Bench(lambda call: {"n": 5}).run(plan).result)
    assert found["output.data.n > 3"].value is True
    assert found["s.nope == 1"].missing == "s.nope"
    assert "TEMPLATE_FAILED" in found["result.n | first"].error


def test_selections_of_a_failed_call_see_no_value() -> None:
    plan = plan_arcs("s.n | default(7)", "output.data is defined", "s", "s.error.code")
    report = Bench(lambda call: failing()).run(plan)
    assert isinstance(report, e.CommandFailed)
    found = selections(plan, report.result)
    assert found["s.n | default(7)"].value == 7
    assert found["output.data is defined"].value is False
    assert (found["s"].missing, found["s"].because) == ("s", "step s failed with BOOM")
    assert found["s.error.code"].value == "BOOM"


def assigning(*expressions: str) -> Plan:
    values = ", ".join(
        f'v{number}: "{{{{ {source} }}}}"' for number, source in enumerate(expressions)
    )
    return plan_of(f"- step: s\n  tool: {{kind: python, code: x}}\n  set: {{{values}}}\n")


def test_selections_are_scalars_and_everything_else_goes_by_reference() -> None:
    value = {"n": 1, "f": 1.5, "yes": True, "none": None, "text": "x" * 256, "long": "x" * 257, "wide": "ö" * 129,
             "list": [], "map": {}, "password": "p"}  # fmt: skip
    plan = assigning(*(f"s.{name}" for name in value))
    bench = Bench(lambda call: value)
    found = selections(plan, bench.run(plan).result)
    carried = {source[2:] for source, selected in found.items() if selected.stored is None}
    assert carried == {"n", "f", "yes", "none", "text", "password"}
    assert {name: found[f"s.{name}"].value for name in carried} == {
        name: value[name] for name in carried
    }
    stored = {name: found[f"s.{name}"].stored for name in value.keys() - carried}
    assert {
        name: run_virtually(bench.store.resolve(reference)) for name, reference in stored.items()
    } == {name: value[name] for name in stored}


def test_selections_take_two_kilobytes_together() -> None:
    value = {f"t{number}": "x" * 250 for number in range(12)}
    plan = assigning(*(f"s.{name}" for name in value))
    found = selections(plan, Bench(lambda call: value).run(plan).result)
    sizes = [len(encode(selected)) for selected in found.values() if selected.stored is None]
    assert sum(sizes) <= 2_048
    assert len(sizes) == 7


def test_what_a_loop_runs_over_is_named_not_copied() -> None:
    def looping(more: str = "") -> Plan:
        each = '- step: each\n  loop: {in: "{{ s.rows }}", iterator: x}\n  tool: {kind: python, code: x}\n'
        return plan_of(f"- step: s\n  tool: {{kind: python, code: x}}\n  next: each{more}\n{each}")

    def run(plan: Plan, size: int) -> tuple[Any, Envelope, int]:
        bench = Bench(lambda call: list(range(size)))
        report = bench.run(plan)
        return selections(plan, report.result)["s.rows"], report.result, len(bench.store._payloads)

    for plan in (looping(), looping('\n  set: {ctx.all: "{{ s.rows }}"}')):
        for size in (3, 5_000):
            found, envelope, stored = run(plan, size)
            assert (found.stored, found.value, stored) == (envelope.reference, None, 1)


def test_a_member_that_a_loop_runs_over_is_stored_by_itself() -> None:
    each = '- step: each\n  loop: {in: "{{ s.found }}", iterator: x}\n  tool: {kind: python, code: x}\n'
    plan = plan_of(f"- step: s\n  tool: {{kind: python, code: x}}\n  next: each\n{each}")
    bench = Bench(lambda call: {"found": [{"id": 1}, {"id": 2}], "more": False})
    stored = selections(plan, bench.run(plan).result)["s.found"].stored
    assert (stored.rows, run_virtually(bench.store.resolve(stored))) == (2, [{"id": 1}, {"id": 2}])


def test_a_guard_that_a_worker_evaluates_is_reported_as_its_verdict() -> None:
    plan = plan_of(
        "- step: up\n  tool: {kind: python, code: x}\n  next: s\n"
        '- step: s\n  next: [{step: last, when: "{{ up.rows[ctx.i] }}"}, {step: last, when: "{{ up.rows[ctx.k] }}"}]\n'
        "- step: last\n"
    )
    bench = Bench()
    up = bench.put([[], [{"secret": 1}]])
    report = bench.run(plan, kind="evaluate", site="when", ctx={"i": 0, "k": 1}, results={"up": up})
    assert [selected.value for selected in report.values] == [False, True]


def test_a_context_that_is_too_large_is_an_error() -> None:
    report = Bench(lambda call: Success(1, {"http": {"headers": "x" * 9_000}})).run(
        plan_arcs("true")
    )
    assert isinstance(report, e.CommandFailed)
    assert report.result.error is not None
    assert report.result.error.code == "CONTEXT_TOO_LARGE"


def make_limited_bench(does: Any, limit: int) -> Bench:
    bench = Bench(does)
    bench.env = structs.replace(bench.env, context_limit=limit)
    return bench


def test_the_limit_of_a_context_may_be_lower() -> None:
    plan = plan_arcs("s.text == 'x'", "s.other")
    report = make_limited_bench(lambda call: {"text": "x" * 200, "other": "y" * 3_000}, 4_096).run(
        plan
    )
    assert selections(plan, report.result)["s.other"].stored is not None
    assert len(encode(report.result)) < 4_096
    report = make_limited_bench(
        lambda call: Success(1, {"http": {"headers": "x" * 5_000}}), 4_096
    ).run(plan_arcs("true"))
    assert report.result.error.code == "CONTEXT_TOO_LARGE"


def test_what_an_event_says_of_a_failure_has_no_keys_that_name_secrets() -> None:
    said = {
        "status": 500,
        "data": {"password": "sesame", "next_page_token": "t", "rows": [{"Cookie": "c", "id": 1}]},
    }
    found = limit_failure(Failure(code="HTTP_500", kind="http", message="no", detail=said))
    assert found.detail == {"status": 500, "data": {"next_page_token": "t", "rows": [{"id": 1}]}}


def test_facts_lose_keys_that_name_secrets() -> None:
    report = Bench(lambda call: Success(1, {"http": {"status": 200, "Authorization": "b"}})).run(
        plan_arcs("true")
    )
    assert report.result.context["http"] == {"status": 200}


class FlakyStore(ResultsMemory):
    def __init__(self, failures: int) -> None:
        super().__init__()
        self.failures = failures

    async def put(self, address: Any, value: Any) -> Reference:
        if self.failures > 0:
            self.failures -= 1
            raise StoreUnavailable("down")
        return await super().put(address, value)


POLICY = "spec: {policy: {rules: [{else: {do: retry, attempts: 5}}]}}"


def test_a_failed_put_is_repeated_and_the_tool_is_not_run_again() -> None:
    plan = plan_of("- step: s\n  tool: {kind: python, code: x, input: {n: 1}}\n")
    bench = Bench(store=FlakyStore(3))
    assert isinstance(bench.run(plan), e.CommandCompleted)
    assert len(bench.tool.calls) == 1


def test_a_store_that_stays_down_fails_the_step_whatever_its_policy() -> None:
    bench = Bench(store=FlakyStore(1_000))
    report = bench.run(
        plan_of(f"- step: s\n  tool: {{kind: python, code: x, input: {{n: 1}}, {POLICY}}}\n")
    )
    assert report.result.error.code == "REFERENCE_NOT_AVAILABLE"
    assert len(bench.tool.calls) == 1


# ---- for the server ------------------------------------------------------------------------------------------------------


def test_a_site_is_evaluated_with_the_data() -> None:
    plan = plan_of(
        "- step: up\n  tool: {kind: python, code: x}\n  next: s\n"
        '- step: s\n  next: [{step: last, when: "{{ up.rows[ctx.i] == 1 }}"}, {step: last, when: "{{ up.rows[ctx.k] }}"}]\n'
        "- step: last\n"
    )
    bench = Bench()
    report = bench.run(
        plan, kind="evaluate", site="when", ctx={"i": 1}, results={"up": bench.put([0, 1, 2])}
    )
    assert isinstance(report, e.ExpressionEvaluated)
    assert report.values[0].value is True
    assert report.values[1].missing is not None


def run_plan(bench: Bench, template: str, **scope: Any) -> Any:
    plan = plan_of(
        "- step: up\n  tool: {kind: python, code: x}\n  next: s\n"
        f"- step: s\n  loop: {{in: {template}, iterator: row}}\n  tool: {{kind: python, code: x}}\n"
    )
    return bench.run(plan, kind="plan", site="in", **scope)


def test_a_stored_row_set_is_looped_over_as_it_is() -> None:
    bench = Bench()
    up = bench.put([1, 2, 3])
    for template in ('"{{ up.rows }}"', '"{{ up }}"'):
        collection = run_plan(bench, template, results={"up": up}).plan
        assert (collection.kind, collection.size, collection.reference) == (
            "reference",
            3,
            up.reference,
        )


def test_a_computed_collection_is_written_once_whatever_its_size() -> None:
    bench = Bench()
    up = bench.put([{"n": 1}, {"n": 2}])
    small = run_plan(bench, "\"{{ up | map(attribute='n') | list }}\"", results={"up": up}).plan
    large = run_plan(Bench(), '"{{ ctx.big }}"', ctx={"big": ["x" * 100] * 100}).plan
    for collection, size in ((small, 2), (large, 100)):
        assert (collection.kind, collection.size, collection.items) == ("reference", size, ())
        assert "/collection/" in collection.reference.uri
    assert bench.value(Envelope(status="ok", reference=small.reference)) == [1, 2]


def test_maps_texts_null_and_numbers() -> None:
    def items(value: Any) -> Any:
        bench = Bench()
        plan = run_plan(bench, '"{{ ctx.v }}"', ctx={"v": value}).plan
        return bench.value(Envelope(status="ok", reference=plan.reference)) or []

    assert items({"a": 1}) == [{"a": 1}]
    assert items("text") == ["text"]
    bench = Bench()
    assert run_plan(bench, '"{{ ctx.v }}"', ctx={"v": None}).plan == e.Collection(
        kind="inline", size=0
    )
    assert run_plan(bench, '"{{ ctx.v }}"', ctx={"v": 3}).error.code == "BAD_COLLECTION"


# ---- how long it stays -------------------------------------------------------------------------------------------------


def lifetimes(tool: str, **fields: Any) -> list[Lifetime | None]:
    bench = Bench(lambda call: {"n": 1})
    bench.run(plan_of(f"- step: s\n{tool}"), **fields)
    return [ref.lifetime for ref in bench.refs]


def test_a_result_is_wanted_for_as_long_as_its_task_says() -> None:
    task = "  tool: {kind: python, code: x, output: %s}\n"
    assert lifetimes(task % "{store: disk}") == [None]
    assert lifetimes(task % "{ttl: 2h}") == [Lifetime("execution", 7_200_000_000)]
    assert lifetimes(task % "{scope: step}") == [Lifetime("step")]
    assert lifetimes(task % "{scope: workflow, ttl: 1}") == [Lifetime("workflow", 1_000_000)]


def test_the_result_of_a_loop_is_wanted_as_long_as_that_of_its_last_task() -> None:
    loop = (
        "  loop: {in: [1, 2], iterator: n}\n  tool:\n"
        "    - {name: a, kind: python, code: x, output: {scope: step}}\n"
        "    - {name: b, kind: python, code: x, output: {scope: permanent}}\n"
    )
    assert lifetimes(loop, kind="chunk", count=2, size=2, items=(1, 2)) == [Lifetime("permanent")]
