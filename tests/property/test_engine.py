"""The engine under any order of reports, losses, duplicates, pauses and cancellations."""

from typing import Any

import yaml
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from noetl.engine.explain import explain
from noetl.engine.fold import evolve
from noetl.engine.interpretation import Refusal, interpret
from noetl.engine.machine import advance
from noetl.engine.outcome import hash_outcome
from noetl.engine.state import (
    ExecutionLimits,
    decode_execution,
    encode_execution,
    make_empty_execution,
)
from noetl.model import decisions as d
from noetl.model import events as e
from noetl.model import messages as m
from noetl.model.commands import Command
from noetl.model.envelope import Envelope, Selected, make_failed_envelope
from noetl.model.errors import Failure
from noetl.model.ids import RefId
from noetl.model.reference import Reference
from tests.examples import count_examples
from tests.play import EXECUTION, Play, workflow
from tests.property.playbooks import documents

QUIET = settings(
    max_examples=count_examples(60),
    deadline=None,
    phases=tuple(p for p in Phase if p is not Phase.explain),
    suppress_health_check=list(HealthCheck),
)
LIMITS = ExecutionLimits(activations=60, depth=4, signals=20)


class Walk(Play):
    """A play that remembers every message, so that it can be repeated."""

    def __init__(self, document: dict[str, Any]) -> None:
        super().__init__(yaml.safe_dump(document, sort_keys=False), limits=LIMITS)
        self.told: list[m.Message] = []
        self.answered: set[str] = set()

    def tell(self, message: m.Message, retried: Any = None) -> Any:
        self.told.append(message)
        return super().tell(message, retried)

    def work(self, command: Command, well: bool, value: Any) -> None:
        """What a worker would do with this command."""
        tasks = self.fixed.plan.steps[command.step].step.tool
        kind = tasks[0].kind if tasks else "noop"
        if command.kind == "evaluate":
            sources = self.fixed.plan.steps[command.step].site_sources[command.site or ""]
            self.report_evaluated(command, *(Selected(value=well) for _ in sources))
        elif command.kind == "plan":
            self.report_plan(command)
        elif kind in ("wait", "playbook") and command.journal.resolved is None:
            self.park(command, tasks[0])
        elif command.kind == "chunk":
            self.chunk(
                command,
                failed=() if well else (command.first,),
                partial={"ctx.total": command.count},
            )
        elif not well:
            self.fail(command)
        elif len(tasks) > 1 and self.state.commands[command.command_id].journal.goto == 0 and value:
            done = e.TaskDone(
                command_id=command.command_id,
                attempt=command.attempt,
                task="one",
                run=1,
                goto=1,
                result=self.envelope(command, value),
                set={"ctx.task": 1},
            )
            self.report(command, done)
        else:
            self.complete(command, {"n": value, "list": [True] * value})

    def report_plan(self, command: Command) -> None:
        reference = Reference(
            ref_id=RefId("1"),
            type="memory",
            uri=f"noetl://execution/{EXECUTION}/collection/x/k",
            rows=3,
        )
        plan = e.Collection(kind="reference", size=3, reference=reference)
        event = e.ExpressionEvaluated(
            command_id=command.command_id,
            attempt=command.attempt,
            step=command.step,
            activation=command.activation,
            site="in",
            plan=plan,
        )
        self.report(command, event)

    def park(self, command: Command, task: Any) -> None:
        reason = "child" if task.kind == "playbook" else ("signal" if task.signal else "time")
        event = e.CommandParked(
            command_id=command.command_id,
            attempt=command.attempt,
            task=task.name,
            reason=reason,
            signal=getattr(task, "signal", None),
            delay=60_000_000 if reason == "time" else None,
            child=e.ChildRequest(path="child") if reason == "child" else None,
        )
        self.report(command, event)

    def end_child(self, well: bool) -> None:
        """The oldest child that has not ended starts and ends."""
        for child in self.children:
            call = child.parent.call
            if call not in self.answered:
                self.answered.add(call)
                self.tell(m.Notice(event=e.ChildStarted(call=call, child=m.ExecutionId("99"))))
                result = (
                    Envelope(status="ok")
                    if well
                    else make_failed_envelope(Failure(code="CHILD_FAILED", message="no"))
                )
                self.tell(
                    m.Notice(
                        event=e.ChildEnded(call=call, child=m.ExecutionId("99"), result=result)
                    )
                )
                return

    def act(self, draw: Any, number: int) -> None:
        ready = self.list_ready()
        action = draw(
            st.sampled_from(
                ["work"] * 8
                + ["lose", "again", "timer", "signal", "pause", "resume", "cancel", "child"]
            )
        )
        if action == "work" and ready:
            self.work(
                draw(st.sampled_from(ready)), draw(st.integers(0, 4)) > 0, draw(st.integers(0, 3))
            )
        elif action == "lose" and ready:
            command = draw(st.sampled_from(ready))
            self.tell(m.LeaseLost(command_id=command.command_id, attempt=command.attempt))
        elif action == "again":
            before = encode_execution(self.state)
            message = draw(st.sampled_from(self.told))
            if isinstance(message, m.Signal | m.Pause | m.Resume | m.Release):
                return  # the inbox's unique key takes these out before the engine sees them
            if isinstance(interpret(self.fixed, self.state, message, self.now), Refusal):
                super().tell(message)
                assert encode_execution(self.state) == before
            else:
                assert isinstance(message, m.LeaseLost | m.Cancel | m.Notice | m.Report), message
        elif action == "timer" and self.timers:
            self.fire()
        elif action == "signal":
            self.tell(m.Signal(name="go", request=f"s{number}", payload=number))
        elif action == "pause":
            self.tell(m.Pause(request=f"p{number}"))
        elif action == "resume":
            self.tell(m.Resume(request=f"r{number}"))
        elif action == "cancel" and draw(st.integers(0, 5)) == 0:
            self.tell(m.Cancel(request=f"c{number}"))
        elif action == "child":
            self.end_child(draw(st.booleans()))
        if self.stops and draw(st.booleans()):
            self.finish_stops()

    def drain(self) -> None:
        """The outside world comes to rest: everything that can end does, well."""
        self.tell(m.Resume(request="drain"))
        for number in range(2_000):
            if self.state.terminal:
                return
            if self.stops:
                self.finish_stops()
            elif ready := self.list_ready():
                self.work(ready[0], True, 1)
            elif any(child.parent.call not in self.answered for child in self.children):
                self.end_child(True)
            elif self.timers:
                self.fire()
            elif any(
                live.parked is not None and live.parked.signal
                for live in self.state.commands.values()
            ):
                self.tell(m.Signal(name="go", request=f"drain{number}"))
            elif later := [due for due in self.available.values() if due > self.now]:
                self.now = min(later)
            else:
                return


def check_walk(walk: Walk) -> None:
    walk.check()
    types = walk.types()
    terminal = next((n for n, event in enumerate(walk.log) if event.key == "terminal"), len(types))
    assert "command.issued" not in types[terminal:]
    started = {event.activation for event in walk.log if isinstance(event, e.LoopStarted)}
    done = [event for event in walk.log if isinstance(event, e.LoopDone)]
    assert len({event.activation for event in done}) == len(done) <= len(started)
    for event in done:
        assert event.stats.ok + event.stats.failed + event.stats.skipped == event.stats.total
        assert min(event.stats.ok, event.stats.failed, event.stats.skipped) >= 0


@QUIET
@given(documents(), st.data())
def test_whatever_happens_the_execution_ends_or_waits_for_a_named_thing(
    document: dict[str, Any], data: st.DataObject
) -> None:
    walk = Walk(document)
    walk.start()
    for number in range(data.draw(st.integers(0, 25))):
        walk.act(data.draw, number)
    walk.drain()
    check_walk(walk)
    if not walk.state.terminal:
        waiting = [explain(walk.fixed, walk.state, a.step) for a in walk.state.activations.values()]
        assert waiting
        assert all(found.because for found in waiting), "it says what it waits for"
        assert all(found.verdict == "waiting" for found in waiting), waiting


@QUIET
@given(documents(), st.data())
def test_folding_is_prefix_safe_and_deciding_again_gives_the_same(
    document: dict[str, Any], data: st.DataObject
) -> None:
    walk = Walk(document)
    walk.start()
    for number in range(data.draw(st.integers(0, 15))):
        walk.act(data.draw, number)
    cut = data.draw(st.integers(0, len(walk.log)))
    state = make_empty_execution(EXECUTION)
    for event in walk.log[:cut]:
        state = evolve(state, event)
    state = decode_execution(encode_execution(state))
    for event in walk.log[cut:]:
        state = evolve(state, event)
    assert encode_execution(state) == encode_execution(walk.state)
    replayed, now = make_empty_execution(EXECUTION), walk.now
    log: list[e.Event] = []
    for message in walk.told:
        events = interpret(walk.fixed, replayed, message, now)
        if not isinstance(events, Refusal):
            made = advance(walk.fixed, replayed, *events)
            replayed, log = made.state, log + list(made.events)
    assert [event.key for event in log] == [event.key for event in walk.log]


@QUIET
@given(
    st.integers(0, 30), st.integers(1, 6), st.integers(1, 5), st.sets(st.integers(0, 29)), st.data()
)
def test_any_order_of_reports_closes_a_loop_exactly_once(
    size: int, window: int, chunk: int, bad: set[int], data: st.DataObject
) -> None:
    how = f"mode: parallel, max_in_flight: {window}, chunk: {chunk}, reduce: {{ctx.t: sum}}"
    spec = f"{{{how}, policy: {{failure: best_effort}}}}"
    step = f"- {{step: each, loop: {{in: '{{{{ workload.rows }}}}', spec: {spec}}}, tool: {{kind: python, code: 'result = 1'}}}}"
    p = Play(workflow(step), {"rows": list(range(size))}).start()
    reported: list[Command] = []
    while ready := p.list_ready():
        assert sum(command.together for command in ready) <= window
        command = data.draw(st.sampled_from(ready))
        p.chunk(command, failed=tuple(bad), partial={"ctx.t": command.count})
        reported.append(command)
        if data.draw(st.booleans()):
            assert isinstance(p.chunk(data.draw(st.sampled_from(reported))), Refusal)
    done = p.check().find_last(e.LoopDone)
    missed = len([index for index in bad if index < size])
    assert done.stats == e.Stats(size, size - missed, missed, 0)
    assert p.types("loop.done") == ["loop.done"]
    assert p.state.ctx == ({"t": size} if size else {})
    covered = sorted(
        index
        for command in reported
        for index in range(command.first, command.first + command.count)
    )
    assert covered == list(range(size))


@QUIET
@given(documents(), st.integers(0, 3), st.randoms(use_true_random=False))
def test_the_outcome_does_not_depend_on_the_order_of_independent_reports(
    document: dict[str, Any], value: int, order: Any
) -> None:
    """Forks without shared variables: whichever branch reports first, the same happened."""
    for step in document["workflow"]:
        step.pop("set", None)
        step.pop("loop", None)
        step["tool"] = {"kind": "python", "code": "result = 1"}
        for arc in (step.get("next") or {}).get("arcs", []):
            arc.pop("set", None)
            arc.pop("args", None)
        step.setdefault("spec", {}).setdefault("policy", {})["failure"] = "continue"
    _acyclic(document)
    outcomes = set()
    for turn in range(3):
        walk = Walk(document)
        walk.start()
        while ready := walk.list_ready():
            command = ready[0] if turn == 0 else (ready[-1] if turn == 1 else order.choice(ready))
            walk.work(command, True, value)
        walk.drain()
        check_walk(walk)
        outcomes.add(hash_outcome(walk.state))
    assert len(outcomes) == 1


def _acyclic(document: dict[str, Any]) -> None:
    names = [step["step"] for step in document["workflow"]]
    document["executor"]["spec"].pop("final_step", None)
    for number, step in enumerate(document["workflow"]):
        router = step.get("next")
        if router is not None:
            router["arcs"] = [arc for arc in router["arcs"] if names.index(arc["step"]) > number]
            if not router["arcs"]:
                del step["next"]
        admit = step["spec"]["policy"].get("admit")
        if admit is not None:
            del step["spec"]["policy"]["admit"]


def test_effects_name_only_commands_that_were_issued() -> None:
    p = Play(workflow("- {step: a, tool: {kind: python, code: 'result = 1'}}")).start().run()
    issued = {effect.command.command_id for effect in p.effects if isinstance(effect, d.Issue)}
    assert {effect.command_id for effect in p.effects if isinstance(effect, d.Finish)} == issued
