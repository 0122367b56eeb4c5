"""Plays an execution against the engine alone: what would be issued is collected, a test says what workers report.

No dispatcher, no store, no clock: time moves when the test says so. The log is the list of events in the order they were
folded; `check` folds it again from nothing and compares.
"""

from collections.abc import Callable
from typing import Any

import yaml
from msgspec import to_builtins
from msgspec.structs import replace

from noetl.engine.fold import evolve
from noetl.engine.interpretation import Refusal, add_conflicts, interpret
from noetl.engine.machine import Advance, advance
from noetl.engine.state import (
    Execution,
    ExecutionLimits,
    PinnedPlaybook,
    decode_execution,
    encode_execution,
    make_empty_execution,
)
from noetl.model import decisions as d
from noetl.model import events as e
from noetl.model import messages as m
from noetl.model.commands import Command
from noetl.model.envelope import Envelope, Selected, is_scalar, make_failed_envelope
from noetl.model.errors import Failure
from noetl.model.ids import RefId
from noetl.model.playbook_state import MAX_STATE_NAMES, StateValue
from noetl.model.reference import Reference
from noetl.playbook.plan import Plan, compile_plan
from noetl.playbook.validation import load_or_raise
from noetl.playbook.workload import merge_workload
from noetl.template.errors import TemplateError, UndefinedError
from noetl.template.model import Selection
from noetl.template.parsing import parse_expression
from tests.rendering import render

EXECUTION = "7"
Answer = Callable[[Command], Any]  # the step's value, or an Exception/Failure; None for null


def plan_of(text: str) -> Plan:
    return compile_plan(load_or_raise(text), "hash")


def workflow(steps: str, **document: Any) -> str:
    """A playbook around the steps, which are YAML."""
    return yaml.safe_dump(
        {
            "apiVersion": "noetl.io/v2",
            "kind": "Playbook",
            "metadata": {"name": "test", "path": "test"},
            **document,
            "workflow": yaml.safe_load(steps),
        },
        sort_keys=False,
    )


class Play:
    def __init__(
        self,
        text: str,
        payload: dict[str, Any] | None = None,
        *,
        limits: ExecutionLimits | None = None,
    ) -> None:
        plan = plan_of(text)
        self.fixed = PinnedPlaybook(
            m.ExecutionId(EXECUTION),
            plan,
            merge_workload(plan.playbook, payload),
            limits=limits or ExecutionLimits(),
        )
        self.state: Execution = make_empty_execution(EXECUTION)
        self.log: list[e.Event] = []
        self.effects: list[d.Effect] = []
        self.queue: dict[str, Command] = {}
        self.available: dict[str, int] = {}
        self.timers: dict[str, int] = {}
        self.stops: set[str] = set()
        self.sent: list[d.Send] = []
        self.children: list[d.StartChild] = []
        self.stored: dict[str, StateValue] = {}  # the playbook's state, as the log would keep it
        self.now = 1_000_000
        self.refs = 0

    # ---- moving on

    def tell(self, message: m.Message, retried: Execution | None = None) -> "Play | Refusal":
        conflicts: dict[str, e.StateConflict] = {}
        while True:
            stored = self.stored_for(message)
            events = interpret(
                self.fixed, self.state, message, self.now, retried=retried, stored=stored
            )
            if isinstance(events, Refusal):
                return events
            facts = add_conflicts(self.state, events, conflicts, self.now)
            made = advance(self.fixed, self.state, *facts)
            conflict = self.conflict(made)
            if conflict is None:
                break
            assert conflict.name not in conflicts, "it was told, and writes again"
            conflicts[conflict.name] = conflict
        self.take(made)
        return self

    def stored_for(self, message: m.Message) -> dict[str, StateValue] | None:
        """What a message that admits the execution brings."""
        plan = self.fixed.plan
        waits = (
            isinstance(message, m.Start) and plan.playbook.executor.spec.max_concurrent is not None
        )
        if (
            waits
            or not isinstance(message, m.Start | m.Admitted)
            or plan.state_names == frozenset()
        ):
            return None
        return {
            name: v
            for name, v in self.stored.items()
            if plan.state_names is None or name in plan.state_names
        }

    def conflict(self, made: Advance) -> e.StateConflict | None:
        """The first write that compare-and-set refuses."""
        versions = {name: value.version for name, value in self.stored.items()}
        for effect in made.effects:
            if isinstance(effect, d.SetState):
                version = versions.get(effect.name, 0)
                if version != effect.expected:
                    return e.StateConflict(
                        name=effect.name, expected=0, version=version, by="another"
                    )
                versions[effect.name] = version + 1
                if len(versions) > MAX_STATE_NAMES:
                    return e.StateConflict(name=effect.name, expected=0, version=0, is_full=True)
        return None

    def take(self, made: Advance) -> None:
        self.state = made.state
        self.log += made.events
        for effect in made.effects:
            self.apply(effect)

    def apply(self, effect: d.Effect) -> None:
        self.effects.append(effect)
        match effect:
            case d.Issue():
                self.queue[effect.command.command_id] = effect.command
                self.available[effect.command.command_id] = effect.available_at or 0
            case d.Requeue():
                assert effect.command_id not in self.stops, "the log has cancelled it"
                old = self.queue[effect.command_id]
                self.queue[effect.command_id] = replace(
                    old, attempt=effect.attempt, journal=effect.journal
                )
                self.available[effect.command_id] = effect.available_at or 0
            case d.Park():
                self.available[effect.command_id] = -1
            case d.Finish():
                self.queue.pop(effect.command_id, None)
            case d.Stop():
                self.stops |= set(effect.commands)
            case d.SetTimer():
                self.timers[effect.timer] = effect.due
            case d.ClearTimer():
                self.timers.pop(effect.timer, None)
            case d.Send():
                self.sent.append(effect)
            case d.StartChild():
                self.children.append(effect)
            case d.SetState():
                self.stored[effect.name] = StateValue(effect.expected + 1, effect.value)

    def start(self, **fields: Any) -> "Play":
        self.tell(
            m.Start(execution_id=m.ExecutionId(EXECUTION), path="test", playbook="hash", **fields)
        )
        return self

    def report(self, command: Command, event: e.Reported) -> "Play | Refusal":
        return self.tell(
            m.Report(
                execution_id=command.execution_id,
                command_id=command.command_id,
                attempt=command.attempt,
                worker="w1",
                event=event,
            )
        )

    # ---- what a worker would say

    def list_ready(self) -> list[Command]:
        return [
            c
            for key, c in self.queue.items()
            if 0 <= self.available[key] <= self.now and key not in self.stops
        ]

    def command(self, step: str) -> Command:
        return next(c for c in self.list_ready() if c.step == step)

    def envelope(self, command: Command, value: Any) -> Envelope:
        self.refs += 1
        uri = f"noetl://execution/{EXECUTION}/result/{command.step}/{command.command_id}-{command.attempt}-t"
        sha = str(hash(str(value)) & 0xFFFF)
        rows = len(value) if isinstance(value, list) else None
        reference = Reference(
            ref_id=RefId(str(self.refs)), type="memory", uri=uri, sha256=sha, rows=rows
        )
        context: dict[str, Any] = {"selections": self.selections(command, value)}
        if rows is not None:
            context["row_count"] = rows
        return Envelope(status="ok", reference=reference, context=context)

    def selections(self, command: Command, value: Any) -> dict[str, Any]:
        output = {"data": value, "status": "ok"}
        scope = {
            command.step: value,
            "result": value,
            "response": value,
            "output": output,
            "outcome": output,
        }
        scope |= {"workload": command.scope.workload, **command.scope.workload}
        found: dict[str, Any] = {}
        for selection in self.fixed.plan.steps[command.step].selections:
            try:
                made = self.make_selected(
                    command, selection, render(parse_expression(selection.source), scope)
                )
            except UndefinedError as error:
                made = {"missing": str(error)}
            except TemplateError as error:
                made = {"error": str(error)}
            found[selection.id] = made
        return found

    def make_selected(self, command: Command, selection: Selection, value: Any) -> dict[str, Any]:
        """A scalar as it is, anything else by reference."""
        if is_scalar(value):
            return {"value": value}
        self.refs += 1
        uri = f"noetl://execution/{EXECUTION}/result/{command.step}/{command.command_id}-{command.attempt}-{selection.id}"
        rows = len(value) if isinstance(value, list) else None
        reference = Reference(ref_id=RefId(str(self.refs)), type="memory", uri=uri, rows=rows)
        return {"stored": to_builtins(reference)}

    def complete(self, command: Command, value: Any = None, **fields: Any) -> "Play | Refusal":
        result = self.envelope(command, value)
        return self.report(
            command,
            e.CommandCompleted(
                command_id=command.command_id, attempt=command.attempt, result=result, **fields
            ),
        )

    def fail(self, command: Command, code: str = "BROKEN", **fields: Any) -> "Play | Refusal":
        result = make_failed_envelope(
            Failure(code=code, message=f"{command.step} is {code.lower()}")
        )
        return self.report(
            command,
            e.CommandFailed(
                command_id=command.command_id, attempt=command.attempt, result=result, **fields
            ),
        )

    def chunk(
        self, command: Command, *, failed: tuple[int, ...] = (), millis: float = 1.0, **fields: Any
    ) -> "Play | Refusal":
        """The items of a chunk, those of `failed` (absolute indexes) badly."""
        first = max(command.journal.done, command.first)
        indexes = range(first, command.first + command.count)
        bad = [index for index in indexes if index in failed]
        if bad and command.stop_on_failure:
            indexes = range(first, bad[0] + 1)
            bad = bad[:1]
        items = e.Items(
            first=first,
            ok=len(indexes) - len(bad),
            failed=len(bad),
            micros=int(len(indexes) * millis * 1000),
            first_failed=bad[0] if bad else None,
            first_error=Failure(code="ITEM", message=f"item {bad[0]} is bad") if bad else None,
            **fields,
        )
        return self.complete(command, [{"index": index} for index in indexes], items=items)

    def report_evaluated(self, command: Command, *values: Any) -> "Play | Refusal":
        made = tuple(v if isinstance(v, Selected) else Selected(value=v) for v in values)
        return self.report(
            command,
            e.ExpressionEvaluated(
                command_id=command.command_id,
                attempt=command.attempt,
                step=command.step,
                activation=command.activation,
                site=command.site or "",
                values=made,
            ),
        )

    def run(self, answer: Answer | None = None, limit: int = 10_000) -> "Play":
        """Report every ready command until none is: values by `answer`, items all well."""
        for _ in range(limit):
            ready = self.list_ready()
            if not ready:
                break
            command = ready[0]
            value = answer(command) if answer is not None else None
            if isinstance(value, Failure):
                result = make_failed_envelope(value)
                self.report(
                    command,
                    e.CommandFailed(
                        command_id=command.command_id, attempt=command.attempt, result=result
                    ),
                )
            elif command.kind == "chunk":
                self.chunk(command)
            else:
                self.complete(command, value)
        return self

    def fire(self, timer: str | None = None) -> "Play":
        """The next timer is due."""
        timer = timer or min(self.timers, key=lambda t: self.timers[t])
        self.now = max(self.now, self.timers.pop(timer))
        self.tell(m.TimerDue(timer=m.TimerId(timer)))
        return self

    def finish_stops(self) -> "Play":
        """Everything that was told to stop has stopped."""
        while self.stops:
            key = min(self.stops)
            self.stops.discard(key)
            if key in self.queue:
                self.tell(m.Stopped(command_id=m.CommandId(key), attempt=self.queue[key].attempt))
        return self

    # ---- what a test looks at

    def types(self, *only: str) -> list[str]:
        return [event.type for event in self.log if not only or event.type in only]

    def path(self) -> list[str]:
        """Steps in the order they were entered."""
        return [event.step for event in self.log if isinstance(event, e.StepEnter)]

    def find_last(self, kind: type) -> Any:
        return next(event for event in reversed(self.log) if isinstance(event, kind))

    def check(self) -> "Play":
        """The log alone gives the state; keys are unique; a snapshot at any point changes nothing."""
        keys = [event.key for event in self.log]
        assert len(keys) == len(set(keys)), [key for key in keys if keys.count(key) > 1]
        state = make_empty_execution(EXECUTION)
        for event in self.log:
            state = evolve(decode_execution(encode_execution(state)), event)
        assert encode_execution(state) == encode_execution(self.state)
        terminal = [event.type for event in self.log if event.key == "terminal"]
        assert len(terminal) == (1 if self.state.terminal else 0)
        return self
