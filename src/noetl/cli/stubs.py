"""Tools that answer with the stubs of a playbook test.

Kinds that need nothing outside the process are really called. For all other kinds a call without a
stub is an error of the test. No time passes: a wait for a moment ends at once, and a wait for a
missing signal times out at once.
"""

import asyncio
from collections import Counter
from typing import Any

from noetl.cli.cases import Case, StubAnswer
from noetl.model.approvals import approval_name
from noetl.model.errors import Failure
from noetl.pipeline.failures import TaskFailed
from noetl.playbook.model import Action, Model, Paginate, Playbook
from noetl.playbook.validation import load_registered
from noetl.tools.port import Call, Failed, Outcome, Success, Suspend, Tool, raw_fields
from noetl.tools.registry import Registry
from noetl.tools.wait import Wait

REAL_KINDS = frozenset({"noop", "python", "playbook", "workbook"})
SINK = "sink"
WAIT = "wait"
CODE_FIELD = "code"  # a field of a task that is never rendered


class Stubs(Registry):
    """The tools of one test, and the calls that were made. `tools` are those of this machine."""

    def __init__(self, tools: Registry, case: Case) -> None:
        super().__init__()
        self._real = tools
        self._case = case
        self._numbers: Counter[tuple[str, str, int | None]] = Counter()
        self._signals = Counter(sent.name for sent in case.signals)
        self._signals.update(approval_name(step) for step in case.approvals)
        self.calls: dict[str, list[dict[str, Any]]] = {}  # by step, and by step.task
        # Set to the first missing stub or signal.
        self.missing_stub: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def get(self, kind: str) -> Tool:
        return StubTool(kind, self._real.get(kind), self)

    async def answer_call(self, tool: "StubTool", call: Call) -> Outcome:
        step, task = call.identity.step, call.identity.task
        arguments = await _list_arguments(tool, call)
        for place in (step, f"{step}.{task}"):
            self.calls.setdefault(place, []).append(arguments)
        stub = self._case.stubs.get(f"{step}.{task}")
        if stub is None and tool.kind != SINK:
            stub = self._case.stubs.get(step)
        if stub is None:
            return await self._answer_without_stub(tool, call)
        key = (step, task, call.identity.index)
        number = self._numbers[key]
        self._numbers[key] += 1
        answer = stub.find_answer(number, call.identity.index)
        if answer is None:
            return self._fail_test(f"{step}.{task}: its stub says nothing of call {number + 1}")
        return make_stub_outcome(answer, call)

    async def _answer_without_stub(self, tool: "StubTool", call: Call) -> Outcome:
        """The outcome of a call that has no stub."""
        step = call.identity.step
        if tool.kind == SINK:
            return Success()  # stores nothing; the rows are among the recorded calls
        if tool.kind == WAIT:
            return await self._answer_wait(call)
        if tool.real is not None and (tool.kind in REAL_KINDS or tool.kind in self._case.real):
            return await tool.real.run(call)
        return self._fail_test(
            f"{step} calls {tool.kind}, and no stub says what it gives: add stubs.{step}"
        )

    async def _answer_wait(self, call: Call) -> Outcome:
        wait = await Wait().run(call)
        if not isinstance(wait, Suspend):
            return wait
        if wait.reason == "time":
            return Success()
        signal = wait.signal or ""
        if self._signals[signal] > 0:
            self._signals[signal] -= 1
            return wait
        if wait.timeout is not None:
            message = "nothing came before the wait's timeout"
            return Failed(Failure(code="TIMEOUT", kind="timeout", message=message))
        return self._fail_test(
            f"{call.identity.step} waits for the signal {wait.signal}, and the test gives none"
        )

    def _fail_test(self, problem: str) -> Failed:
        """Fail the call, and end the test with this problem."""
        if not self.missing_stub.done():
            self.missing_stub.set_result(problem)
        return Failed(Failure(code="NO_STUB", kind="test", message=problem))


class StubTool:
    """A tool that asks the stubs for its outcome."""

    def __init__(self, kind: str, real: Tool | None, stubs: Stubs) -> None:
        self.kind = kind
        self.real = real
        self.raw = frozenset() if real is None else raw_fields(real)
        self._stubs = stubs

    async def run(self, call: Call) -> Outcome:
        return await self._stubs.answer_call(self, call)


async def _list_arguments(tool: StubTool, call: Call) -> dict[str, Any]:
    """The arguments of a call without empty ones. Fields that the tool renders are rendered here."""
    arguments = {"input": call.input}
    for name, value in call.config.items():
        if value in (None, {}, []) or name == CODE_FIELD:
            continue
        if name in tool.raw:
            arguments[name] = await _render_field(value, call)
        else:
            arguments[name] = value
    return arguments


async def _render_field(template: Any, call: Call) -> Any:
    assert call.rendering is not None
    try:
        return await call.rendering.value(template)
    except TaskFailed:
        return template


def make_stub_outcome(answer: StubAnswer, call: Call) -> Success | Failed:
    match answer.answer_field:
        case "error":
            assert answer.error is not None
            failure = Failure(**answer.error.model_dump())
            if failure.http_status is None:
                return Failed(failure, {})
            return Failed(failure, {"http": {"status": failure.http_status}})
        case "rows":
            columns: list[str] = []
            if answer.rows and isinstance(answer.rows[0], dict):
                columns = list(answer.rows[0])
            return Success(
                {
                    "rows": answer.rows,
                    "row_count": len(answer.rows),
                    "columns": columns,
                }
            )
        case "data":
            value: dict[str, Any] = {
                "status_code": answer.status,
                "headers": {},
                "url": call.config.get("url"),
                "elapsed": 0.0,
            }
            return Success({**value, "data": answer.data}, {"http": {"status": answer.status}})
        case _:
            return Success(answer.value)


class StubCredentials:
    """The credentials of the test. All others have invented values for every usual field."""

    def __init__(self, known: dict[str, dict[str, Any]]) -> None:
        self._known = known

    async def get(self, name: str) -> dict[str, Any]:
        fields = ("value", "token", "username", "password", "secret")
        invented = {field: f"credential-{name}-{field}" for field in fields}
        return self._known.get(name) or invented


def load_without_delays(text: str) -> Playbook:
    """The playbook without its delays: retries and next pages come at once."""
    playbook: Playbook = _remove_delays(load_registered(text))
    return playbook


def _remove_delays(value: Any) -> Any:
    if isinstance(value, list):
        return [_remove_delays(item) for item in value]
    if not isinstance(value, Model):
        return value
    changed = {name: _remove_delays(getattr(value, name)) for name in type(value).model_fields}
    if isinstance(value, Action | Paginate):
        changed |= {"delay": None, "backoff": None}
    return value.model_copy(update=changed)
