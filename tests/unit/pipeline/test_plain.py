"""Items of one plain task end as their pipelines would have ended them, whether their tool takes many inputs or one."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from noetl.model.envelope import Envelope
from noetl.model.events import CommandCompleted, CommandProgress
from noetl.model.ids import ExecutionId
from noetl.pipeline.environment import Environment
from noetl.playbook.plan import Plan
from noetl.tools.port import Call, CallIdentity, Failed, Log, OutcomeListener, Success
from noetl.tools.registry import Registry
from tests.unit.pipeline.bench import Bench, LoopClock, Scripted, failing, plan_of
from tests.unit.pipeline.test_chunk import chunk


@dataclass
class ManyCalls(Scripted):
    batches: list[tuple[int, int]] = field(default_factory=list)

    async def run_many(
        self,
        config: dict[str, Any],
        inputs: Sequence[dict[str, Any]],
        log: Callable[[int], Log],
        listener: OutcomeListener,
        *,
        at_once: int = 1,
        stop: bool = False,
        playbook: Any = None,
    ) -> None:
        self.batches.append((len(inputs), at_once))
        clock = asyncio.get_running_loop().time
        identity = CallIdentity(ExecutionId("77"), "s", "s")
        for nth, given in enumerate(inputs):
            began = clock()
            outcome = await self.run(Call(config, given, "", identity, log=log(nth)))
            assert isinstance(outcome, Success | Failed)
            listener(nth, outcome, clock() - began, 1)
            if stop and isinstance(outcome, Failed):
                break


def many(does: Any) -> tuple[Bench, ManyCalls]:
    bench, tool = Bench(), ManyCalls(does)
    bench.env = Environment(bench.store, Registry([tool]), LoopClock(), "w1")
    return bench, tool


def looping(body: str) -> Plan:
    head = "workload: {add: 10}\n"
    return plan_of(
        f"- {{step: up, next: s}}\n- step: s\n  loop: {{in: [1], iterator: row, spec: {{mode: parallel}}}}\n{body}",
        head,
    )


def picky(call: Call) -> Any:
    return failing(detail=call.input) if call.input.get("n") in ("i3", 13) else {"got": call.input}


BODIES = {
    "input": '  tool: {kind: python, code: x, input: {n: "{{ row }}", at: "{{ loop.index }}/{{ loop.length }}"}}\n',
    "step input": '  input: {n: "{{ row }}"}\n  tool: {kind: python, code: x, input: {m: "{{ input.n }}{{ add }}"}}\n',
    "args": '  tool: {kind: python, code: x, input: {k: "{{ args.k }} {{ iter.row }} {{ _attempt }} {{ _task }}"}}\n',
    "no input": "  tool: {kind: python, code: x}\n",
    "chance": '  tool: {kind: python, code: x, input: {u: "{{ uuid() }}", r: "{{ random() }}"}}\n',
    "bad": '  tool: {kind: python, code: x, input: {n: "{{ 1 / (loop.index - 2) }}"}}\n',
    "direct": '  tool: {kind: python, code: x, input: {n: "{{ row }}", at: "{{ iter.index }}", up: "{{ up }}"}}\n',
    "missing": '  tool: {kind: python, code: x, input: {n: "{{ row.nope }}"}}\n',
    "stored": '  tool: {kind: python, code: x, input: {n: "{{ up[loop.index] }}"}}\n',
}


def report_of(bench: Bench, plan: Plan, together: int, *, stop: bool) -> tuple[Any, list[Any]]:
    results = {"up": Envelope(status="ok", reference=bench.put(list(range(10, 18))).reference)}
    report = bench.run(
        plan,
        results=results,
        workload={"add": 10},
        args={"k": "v"},
        **chunk(6, together, stop_on_failure=stop),
    )
    assert isinstance(report, CommandCompleted)
    assert report.items is not None
    rows = [{**row, "ms": 0} for row in bench.value(report.result) or []]
    return msgspec.structs.replace(report.items, micros=0), rows


@pytest.mark.parametrize("together", [1, 4, 100])
@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_it_ends_as_in_a_pipeline(body: str, together: int) -> None:
    plan = looping(body)
    bench, tool = many(picky)
    assert report_of(bench, plan, together, stop=False) == report_of(
        Bench(picky), plan, together, stop=False
    )
    assert all(at_once <= together for _, at_once in tool.batches)
    assert sum(size for size, _ in tool.batches) == len(tool.calls)


def test_one_after_the_other_nothing_runs_after_the_first_failure() -> None:
    plan = looping(BODIES["input"])
    bench, tool = many(picky)
    assert report_of(bench, plan, 1, stop=True) == report_of(Bench(picky), plan, 1, stop=True)
    assert len(tool.calls) == 4


@pytest.mark.parametrize("together", [1, 2])
def test_a_chunk_is_one_call_and_nothing_begins_after_the_first_failure(together: int) -> None:
    bench, tool = many(picky)
    items, rows = report_of(bench, looping(BODIES["input"]), together, stop=True)
    assert (items.ok, items.failed, items.first_failed, len(rows)) == (3, 1, 3, 4)
    assert tool.batches == [(6, together)]
    assert len(tool.calls) == 4


def test_items_are_counted_while_the_call_of_their_chunk_runs() -> None:
    async def run_slowly(call: Call) -> Success:
        await asyncio.sleep(1)
        return Success(call.input)

    bench, tool = many(run_slowly)
    items, _ = report_of(bench, looping(BODIES["input"]), 2, stop=False)
    counted = [event.items.ok for event in bench.of(CommandProgress)]
    assert sum(counted) + items.ok == 6
    assert len(counted) > 2
    assert tool.batches == [(6, 2)]


def test_progress_is_journaled() -> None:
    async def run_slowly(call: Call) -> Success:
        await asyncio.sleep(0.6)
        return Success(call.input)

    bench, _ = many(run_slowly)
    items, _ = report_of(bench, looping(BODIES["input"]), 2, stop=False)
    progress = bench.of(CommandProgress)
    assert progress
    assert sum(event.items.ok for event in progress) + items.ok == 6


def test_a_tool_that_raises_fails_its_items() -> None:
    def raise_error(call: Call) -> Any:
        raise RuntimeError("no")

    bench, _ = many(raise_error)
    items, rows = report_of(bench, looping(BODIES["no input"]), 3, stop=False)
    assert (items.failed, rows[0]["error"]["code"]) == (6, "TOOL_BROKEN")


@pytest.mark.parametrize(
    "more",
    [
        ", timeout: 1s", ', set: {iter.x: "1"}', ', env: {A: "{{ row }}"}', ', provenance: {a: "{{ row }}"}',
        ', spec: {when: "{{ true }}"}', ", spec: {policy: {rules: [{else: {then: {do: continue}}}]}}",
    ],
)  # fmt: skip
def test_whatever_is_more_than_one_call_has_a_pipeline(more: str) -> None:
    bench, tool = many(lambda call: {})
    items, _ = report_of(
        bench, looping(f"  tool: {{kind: python, code: x{more}}}\n"), 3, stop=False
    )
    assert (items.ok, tool.batches) == (6, [])
