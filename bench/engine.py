"""Engine speed on one core: events folded and decided per second of processor time, without any store.

Scenarios: a chain of 20 steps, a loop of 10 000 items (one item a command, so two events an item), a fan-out to 1 000 steps that
meet again, and the largest state of a loop over 1 000 000 stored rows. Beside each rate stands its ratio to a limit measured
in the same run: the rate at which the same events can be encoded and decoded, which any durable engine must do at least once.

    uv run python bench/engine.py [--json]
"""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import yaml

from noetl.engine.interpretation import interpret
from noetl.engine.machine import advance
from noetl.engine.state import Execution, PinnedPlaybook, encode_execution, make_empty_execution
from noetl.model import events as e
from noetl.model import messages as m
from noetl.model.codec import decode_event
from noetl.model.codec import encode as encode_event
from noetl.model.commands import Command
from noetl.model.decisions import Issue
from noetl.model.envelope import Envelope
from noetl.model.ids import ExecutionId, RefId
from noetl.model.reference import Reference
from noetl.playbook.plan import compile_plan
from noetl.playbook.validation import load_or_raise

PYTHON = {"kind": "python", "code": "result = {'n': 1}"}


class EngineRun:
    """One execution played as fast as the engine decides; reports are made up front of the clock where possible."""

    def __init__(self, steps: list[dict[str, Any]], workload: dict[str, Any] | None = None) -> None:
        document = {
            "apiVersion": "noetl.io/v2",
            "kind": "Playbook",
            "metadata": {"name": "bench"},
            "workflow": steps,
        }
        plan = compile_plan(load_or_raise(yaml.safe_dump(document, sort_keys=False)), "bench")
        self.fixed = PinnedPlaybook(ExecutionId("7"), plan, workload or {})
        self.state: Execution = make_empty_execution("7")
        self.events: list[e.Event] = []
        self.largest = 0
        self.spent = 0.0
        self.at = 0

    def send_message(self, message: m.Message) -> list[Command]:
        self.at += 100
        begun = time.process_time()
        given = interpret(self.fixed, self.state, message, self.at)
        assert isinstance(given, tuple), given
        made = advance(self.fixed, self.state, *given)
        self.spent += time.process_time() - begun
        self.state = made.state
        self.events += made.events
        return [effect.command for effect in made.effects if isinstance(effect, Issue)]

    def play_commands(
        self, answer: Callable[[Command], e.Reported], watch: bool = False
    ) -> "EngineRun":
        start = m.Start(execution_id=ExecutionId("7"), path="bench", playbook="bench")
        queue = self.send_message(start)
        while queue:
            command = queue.pop(0)
            event = answer(command)
            report = m.Report(
                execution_id=command.execution_id,
                command_id=command.command_id,
                attempt=1,
                worker="w",
                event=event,
            )
            queue += self.send_message(report)
            if watch:
                self.largest = max(self.largest, len(encode_execution(self.state)))
        assert self.state.status == "completed", (self.state.status, self.state.failure)
        return self

    @property
    def event_rate(self) -> float:
        return len(self.events) / self.spent

    def codec_rate(self) -> float:
        begun = time.process_time()
        for event in self.events:
            decode_event(encode_event(event))
        return len(self.events) / (time.process_time() - begun)


def make_envelope(command: Command, rows: int | None = None) -> Envelope:
    uri = f"noetl://execution/7/result/{command.step}/{command.command_id}-1-t"
    reference = Reference(
        ref_id=RefId("1"), type="kv", uri=uri, sha256="0" * 64, bytes=100, rows=rows
    )
    return Envelope(status="ok", reference=reference, context={"row_count": 1, "n": 1})


def make_completed(command: Command) -> e.CommandCompleted:
    items = None
    if command.kind == "chunk":
        items = e.Items(first=command.first, ok=command.count, micros=command.count * 50)
    return e.CommandCompleted(
        command_id=command.command_id,
        attempt=1,
        result=make_envelope(command, command.count or None),
        items=items,
    )


def run_chain() -> EngineRun:
    names = [f"s{n}" for n in range(20)]
    steps = [
        {
            "step": name,
            "tool": PYTHON,
            "next": [{"step": after, "when": "{{ output.status == 'ok' }}"}] if after else None,
        }
        for name, after in zip(names, [*names[1:], None], strict=True)
    ]
    return EngineRun(
        [{k: v for k, v in step.items() if v is not None} for step in steps]
    ).play_commands(make_completed)


def run_loop(size: int) -> EngineRun:
    step = {
        "step": "each",
        "loop": {
            "in": "{{ workload.rows }}",
            "spec": {"mode": "parallel", "max_in_flight": 100, "chunk": 1},
        },
        "tool": PYTHON,
    }
    return EngineRun([step], {"rows": list(range(size))}).play_commands(make_completed)


def run_fan_out(width: int) -> EngineRun:
    arcs = [{"step": f"b{n}"} for n in range(width)]
    steps = [{"step": "start", "next": {"spec": {"mode": "inclusive"}, "arcs": arcs}}]
    steps += [{"step": f"b{n}", "tool": PYTHON, "next": "meet"} for n in range(width)]
    return EngineRun([*steps, {"step": "meet", "tool": PYTHON}]).play_commands(make_completed)


def run_million(size: int = 1_000_000) -> EngineRun:
    """Stored rows, chunks by speed: what the state grows to at its widest."""

    def answer_command(command: Command) -> e.Reported:
        if command.step == "load":
            (rows,) = run.fixed.plan.steps["load"].selections
            context = {"selections": {rows.id: {"reference": "noetl://execution/7/result/load/k"}}}
            return e.CommandCompleted(
                command_id=command.command_id,
                attempt=1,
                result=Envelope(status="ok", context=context),
            )
        if command.kind == "plan":
            uri = "noetl://execution/7/collection/each/k"
            reference = Reference(
                ref_id=RefId("2"), type="object_store", uri=uri, sha256="0" * 64, rows=size
            )
            plan = e.Collection(kind="reference", size=size, reference=reference)
            return e.ExpressionEvaluated(
                command_id=command.command_id,
                attempt=1,
                step="each",
                activation=command.activation,
                site="in",
                plan=plan,
            )
        return make_completed(command)

    step = {
        "step": "each",
        "loop": {
            "in": "{{ load.rows }}",
            "spec": {"mode": "parallel", "max_in_flight": 100, "reduce": {"ctx.total": "sum"}},
        },
        "tool": PYTHON,
    }
    run = EngineRun([{"step": "load", "tool": PYTHON, "next": "each"}, step])
    return run.play_commands(answer_command, watch=True)


def main() -> None:
    figures: dict[str, Any] = {}
    for name, make, repeats in (
        ("chain_20", run_chain, 20),
        ("loop_10000", lambda: run_loop(10_000), 3),
        ("fan_out_1000", lambda: run_fan_out(1_000), 3),
    ):
        runs = [make() for _ in range(repeats)]
        best = max(runs, key=lambda run: run.event_rate)
        limit = best.codec_rate()
        figures[name] = {
            "events": len(best.events),
            "events_s": round(best.event_rate),
            "codec_s": round(limit),
            "ratio": round(best.event_rate / limit, 3),
            "state_bytes": len(encode_execution(best.state)),
        }
    big = run_million()
    figures["loop_1000000"] = {"events": len(big.events), "largest_state_bytes": big.largest}
    if "--json" in sys.argv:
        print(json.dumps(figures))
        return
    for name, row in figures.items():
        print(f"{name:14}", "  ".join(f"{key} {value:,}" for key, value in row.items()))


if __name__ == "__main__":
    main()
