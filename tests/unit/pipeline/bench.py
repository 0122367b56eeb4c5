"""A bench for commands: playbook text in, a tool that does as it is told, virtual time, every journal entry kept."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from noetl.model import events as e
from noetl.model.commands import Command, Journal, Page, Scope
from noetl.model.decisions import AddPart
from noetl.model.envelope import Envelope
from noetl.model.errors import Failure
from noetl.model.ids import ActivationId, CommandId, ExecutionId
from noetl.model.reference import make_address
from noetl.pipeline.environment import Environment, OutgoingEvent
from noetl.pipeline.execute import execute
from noetl.playbook.assignments import is_reference, read_link
from noetl.playbook.plan import Plan, compile_plan
from noetl.playbook.validation import load_or_raise, source_hash
from noetl.results.tiers.memory import ResultsMemory
from noetl.tools.noop import Noop
from noetl.tools.playbook import PlaybookTool
from noetl.tools.port import Call, Failed, Outcome, Success, Tool
from noetl.tools.registry import Registry
from noetl.tools.wait import Wait
from tests.waiting import run_virtually

EXECUTION = ExecutionId("77")
HEADER = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: bench}\n"


def plan_of(steps: str, head: str = "") -> Plan:
    text = HEADER + head + "workflow:\n" + steps
    return compile_plan(load_or_raise(text), source_hash(text))


class LoopClock:
    def now(self) -> int:
        return 1_700_000_000_000_000


Does = Callable[[Call], Any]


@dataclass
class Scripted:
    """A tool that answers every call by a function: an outcome, a coroutine of one, or a plain value."""

    does: Does = lambda call: dict(call.input)
    kind: str = "python"
    raw: frozenset[str] = frozenset({"code"})
    calls: list[Call] = field(default_factory=list)

    async def run(self, call: Call) -> Outcome:
        self.calls.append(call)
        made = self.does(call)
        made = await made if hasattr(made, "__await__") else made
        return made if isinstance(made, Success | Failed) else Success(made)


def failing(code: str = "BOOM", **facts: Any) -> Failed:
    return Failed(Failure(code=code, message="as asked", retryable=True), facts)


@dataclass
class Bench:
    does: Does = lambda call: dict(call.input)
    more: list[Tool] = field(default_factory=list)
    store: Any = field(default_factory=ResultsMemory)
    parts: dict[str, list[AddPart]] = field(default_factory=dict)
    journal: list[Any] = field(default_factory=list)
    refs: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tool = Scripted(lambda call: self.does(call))
        registry = Registry([self.tool, Noop(), Wait(), PlaybookTool(), *self.more])
        self.env = Environment(self.store, registry, LoopClock(), "w1", self._manifest)

    async def _manifest(self, manifest: str) -> list[AddPart]:
        return self.parts.get(manifest, [])

    async def _record(self, sent: OutgoingEvent) -> None:
        self.journal.append(sent.event)
        self.refs += sent.refs

    def run(self, plan: Plan, step: str = "s", **fields: Any) -> Any:
        """The report of one command; `journal` has what came before it."""
        return run_virtually(self.execute(plan, step, **fields))

    async def execute(self, plan: Plan, step: str = "s", **fields: Any) -> Any:
        sent = await execute(self.env, plan, command(plan, step, **fields), self._record)
        self.refs += sent.refs
        return sent.event

    def value(self, envelope: Envelope) -> Any:
        return (
            None
            if envelope.reference is None
            else run_virtually(self.store.resolve(envelope.reference))
        )

    def follow_link(self, value: Any) -> Any:
        """The value of a link, or the value itself."""
        return run_virtually(self.store.resolve(read_link(value))) if is_reference(value) else value

    def read_assigned(self, report: Any) -> dict[str, Any]:
        """What the report assigns, with the values of its links."""
        return {name: self.follow_link(value) for name, value in report.set.items()}

    def put(self, value: Any, step: str = "up", key: str = "k") -> Envelope:
        reference = run_virtually(
            self.store.put(make_address(EXECUTION, "result", step, key), value)
        )
        return Envelope(status="ok", reference=reference)

    def of(self, kind: type) -> list[Any]:
        return [event for event in self.journal if isinstance(event, kind)]


def command(plan: Plan, step: str = "s", **fields: Any) -> Command:
    scope = {
        name: fields.pop(name)
        for name in list(fields)
        if name in Scope.__struct_fields__ and name != "event"
    }
    made = Command(
        command_id=CommandId("c0ffee"), execution_id=EXECUTION, playbook=plan.hash, step=step,
        activation=ActivationId("ac7"), scope=Scope(**scope),
    )  # fmt: skip
    return msgspec.structs.replace(made, **fields)


def resume_journal(entries: list[Any]) -> Journal:
    """The journal of a new attempt, folded as the engine folds it."""
    journal = Journal()
    for event in entries:
        match event:
            case e.TaskDone():
                journal = Journal(
                    goto=event.goto,
                    runs={**journal.runs, event.task: event.run},
                    results=journal.results
                    if event.transparent
                    else {**journal.results, event.task: event.result.without_context()},
                    prev=event.result.without_context()
                    if event.result.ok and not event.transparent
                    else journal.prev,
                    last=journal.last if event.transparent else event.result.without_context(),
                    jumps=event.jumps,
                    set={**journal.set, **event.set},
                    recovered=event.recovered,
                )
            case e.RetryStarted():
                journal = msgspec.structs.replace(journal, tries=event.tries)
            case e.CallPage():
                page = Page(event.page, event.cursor, event.result.without_context())
                journal = msgspec.structs.replace(
                    journal, page=page, tries=0, set={**journal.set, **event.set}
                )
            case e.CommandProgress():
                journal = msgspec.structs.replace(journal, done=event.done)
            case e.FrameClaimed():
                journal = msgspec.structs.replace(
                    journal, frame=event.reference, frame_size=event.size
                )
    return journal
