"""The names a template sees, and what a pipeline changes among them while it runs.

Bare names, strongest first: scope names, the iterator, tasks of this pipeline, steps, workload.
"""

from dataclasses import dataclass, field
from typing import Any

from msgspec import Struct

from noetl.model.commands import Command
from noetl.model.envelope import Envelope, no_value_context
from noetl.model.errors import Failure
from noetl.model.playbook_state import problem_with_value
from noetl.pipeline.data import LazyResult, ResultReader, answer, held, value_of, view
from noetl.pipeline.failures import Failing
from noetl.playbook.assignments import full_name, placed, root_of
from noetl.playbook.expressions import NO_ERROR, FailedError, OptionalMap, Undefined
from noetl.playbook.reducers import MISSING, fold, partial
from noetl.playbook.scopes import IDENTITY, handled_event, identity, iteration, outer_iteration

RESERVED = IDENTITY | {"workload", "keychain"}
REDUCED = "iter._reduced"  # where the journal of an item alone in its command keeps its writes with a reducer


class LoopItem(Struct, frozen=True):
    """One iteration. `size` is None where nobody knows it (a cursor)."""

    index: int
    value: Any
    iterator: str
    size: int | None
    loop_id: str = ""

    def names(self, written: dict[str, Any]) -> dict[str, Any]:
        """`written` is what it assigned to `iter`, and what is outside of it."""
        return iteration(self.index, self.value, self.iterator, self.size, self.loop_id, written)


@dataclass(slots=True)
class ScopeWrites:
    """ctx and state as the items of one chunk change them. Items of a sequential loop share them; others only reduce."""

    ctx: dict[str, Any]
    step: dict[str, Any]
    state: dict[str, Any] | None = None
    reduce: dict[str, tuple[str, str]] = field(
        default_factory=dict
    )  # full name: (as written, reducer)
    direct: bool = True
    changed: dict[str, Any] = field(
        default_factory=dict
    )  # by full name, since the last journal entry
    literal: set[str] = field(
        default_factory=set
    )  # names whose value is written in the playbook, without a template

    def write(self, name: str, value: Any) -> None:
        """The value as templates are to see it."""
        root, path = root_of(name)
        if root == "state":
            self.state = placed(self.state or {}, path, value)
        elif root == "ctx":
            self.ctx = placed(self.ctx, path, value)
        else:
            self.step = placed(self.step, path, value)


class Issued(Struct, frozen=True):
    """Names that a command brings: the same for every item of it."""

    command: Command
    payloads: ResultReader
    args: dict[str, Any]
    fixed: dict[str, Any]
    outer: dict[str, Any]  # the iteration of the parent that asked for this execution

    @classmethod
    def by(cls, command: Command, payloads: ResultReader, steps_used: frozenset[str]) -> "Issued":
        """`steps_used`: steps that its templates read; those without a result have not run."""
        scope = command.scope
        args = {name: held(value, payloads) for name, value in scope.args.items()}
        results = {name: LazyResult(envelope, payloads) for name, envelope in scope.results.items()}
        steps = {name: value_of(stored, name, f"step {name}") for name, stored in results.items()}
        payloads.known |= {
            each.reference.uri for each in scope.results.values() if each.reference is not None
        }
        not_run = {
            name: Undefined(name, name, "step")
            for name in steps_used - steps.keys() - scope.workload.keys()
        }
        fixed = {
            **not_run,
            **scope.workload,
            **steps,
            **_identity(command),
            "workload": scope.workload,
        }
        fixed["keychain"] = payloads.keychain
        outer = {name: held(value, payloads) for name, value in scope.outer.items()}
        if outer:
            fixed["_loop"] = outer_iteration(outer)
        return cls(command, payloads, args, fixed, outer)


def keychain_names(command: Command) -> dict[str, Any]:
    """What the entries of the keychain see beside each other."""
    workload = command.scope.workload
    return {**workload, **_identity(command), "workload": workload}


def _identity(command: Command) -> dict[str, Any]:
    scope = command.scope
    status = scope.status or "running"
    return identity(
        command.execution_id, scope.path, scope.version, status, scope.error, scope.failed_step
    )


class TemplateScope:
    """The scope of one pipeline, built for every rendering from what is known by then."""

    def __init__(
        self,
        issued: Issued,
        writes: ScopeWrites,
        item: LoopItem | None,
        now: str,
        *,
        journaled: bool,
    ) -> None:
        self._command = issued.command
        self.payloads = issued.payloads
        self._now = now
        self._journaled = journaled
        self.args = issued.args
        self.input = issued.args  # once a task is called, what it is called with
        self._fixed = issued.fixed
        self.writes = writes
        self.item = item
        self.reduced: list[tuple[str, Any]] = []  # writes with a reducer, in order
        self.iter: dict[str, Any] = {}
        self.outer = {"parent": issued.outer} if issued.outer else {}
        self.own_step: dict[str, Any] = {}
        self.tasks: dict[str, LazyResult] = {}
        self.prev: LazyResult | None = None
        self.last: LazyResult | None = None

    def scope(
        self, finished: LazyResult | None = None, task: str | None = None, **more: Any
    ) -> dict[str, Any]:
        """`finished` is the outcome of `task`, to be looked at; without one, the last finished task is what just finished."""
        outcome = finished or self.last
        tasks = self.tasks
        if finished is not None and task is not None and finished.envelope.ok:
            tasks = {**tasks, task: finished}
        names: dict[str, Any] = {**self._fixed}
        if self.writes.state is not None:
            names["state"] = self.writes.state
        values = {name: value_of(stored, name, f"task {name}") for name, stored in tasks.items()}
        names |= {n: v for n, v in values.items() if n not in RESERVED}
        ctx = self.writes.ctx
        names |= {
            "ctx": ctx,
            "vars": ctx,
            "input": self.input,
            "step": {**self.writes.step, **self.own_step},
        }
        names |= {"results": _results(values), "_prev": self._prev()}
        iter = {**self.outer, **(self.writes.step if self.item is None else self.iter)}
        names |= {"iter": iter} if self.item is None else self.item.names(iter)
        if outcome is not None:
            names |= self.output(outcome)
        else:
            names["event"] = self._event(self._command.scope.event)
        names |= more
        names["args"] = names["input"]
        return names

    def _prev(self) -> LazyResult | Undefined | None:
        """The last good value. Undefined if there is none because tasks failed; None before the first task."""
        last = self.prev or self.last
        return None if last is None else value_of(last, "_prev", failed_call(last))

    def output(self, outcome: LazyResult) -> dict[str, Any]:
        envelope = outcome.envelope
        missing = value_of(outcome, "output.data", failed_call(outcome))
        value: Any
        if isinstance(missing, Undefined):
            value = missing
            shown = OptionalMap(view(envelope), "error", undefined={"data": missing})
        else:
            value = answer(outcome)
            shown = OptionalMap({**view(envelope), "data": value}, "error")
        names: dict[str, Any] = {
            "output": shown,
            "outcome": shown,
            "response": value,
            "result": value,
        }
        names["event"] = self._event("call.done" if envelope.ok else "call.error")
        names["error"] = NO_ERROR if envelope.error is None else envelope.error.shown()
        return names

    def _event(self, name: str) -> dict[str, Any]:
        return handled_event(name, self._command.step, self._now)

    def assign(self, target: str, value: Any, *, literal: bool = False) -> None:
        name = full_name(target)
        root, path = root_of(name)
        writes = self.writes
        if root == "state":
            value = self._state_value(path, value)
        (writes.literal.add if literal else writes.literal.discard)(name)
        if root == "iter" and self.item is not None:
            self.iter = placed(self.iter, path, value)
            if self._journaled:
                writes.changed[name] = value
        elif name in writes.reduce:
            self._check(name, value)
            self.reduced.append((name, value))
            if self._journaled:
                writes.changed[REDUCED] = [list(write) for write in self.reduced]
        elif writes.direct or (root == "step" and self.item is None):
            writes.write(name, value)
            writes.changed[name] = value
        elif root == "step":
            self.own_step = placed(
                self.own_step, path, value
            )  # items that run side by side share no scratch
        else:
            hint = f"declare loop.spec.reduce: {{{name}: …}}"
            message = f"an item of a parallel loop writes {name}, which has no reducer: {hint}"
            raise Failing(Failure(code="NO_REDUCER", kind="config", message=message))

    def _state_value(self, path: tuple[str, ...], value: Any) -> Any:
        """The value, if state may hold it; a result that was rendered whole is refused."""
        kept = placed(self.writes.state or {}, path, value)[path[0]]
        problem = problem_with_value(path[0], kept)
        if problem is not None:
            raise Failing(Failure(code="STATE_VALUE", kind="state", message=problem))
        return value

    def _check(self, name: str, value: Any) -> None:
        try:
            partial(self.writes.reduce[name][1], value)
        except FailedError as error:
            raise Failing(
                Failure(code="REDUCE_FAILED", kind="config", message=f"{name}: {error}")
            ) from error

    def restore(self, values: dict[str, Any]) -> None:
        """What attempts before this one assigned."""
        for name, value in values.items():
            if name == REDUCED:
                self.reduced = [(target, held(written, self.payloads)) for target, written in value]
            elif name.startswith("iter.") and self.item is not None:
                self.iter = placed(self.iter, root_of(name)[1], held(value, self.payloads))
            elif name.startswith("state."):
                self.writes.write(name, value)
            else:
                self.writes.write(name, held(value, self.payloads))


def loop_id(command: Command) -> str:
    """Which loop an item belongs to, as the older documents name it."""
    return f"{command.execution_id}:{command.step}"


def folded(reduce: dict[str, tuple[str, str]], writes: list[tuple[str, Any]]) -> dict[str, Any]:
    """Writes in item order, as one partial per reducer."""
    made: dict[str, Any] = {}
    for name, value in writes:
        written, reducer = reduce[name]
        made[written] = fold(reducer, made.get(written, MISSING), value)
    return made


def _results(values: dict[str, LazyResult | Undefined]) -> dict[str, Any]:
    """`results`: a task that failed is no part of the map, but its facts can be read."""
    undefined = {task: value for task, value in values.items() if isinstance(value, Undefined)}
    if not undefined:
        return dict(values)
    return OptionalMap(
        {task: value for task, value in values.items() if task not in undefined},
        undefined=undefined,
    )


def failed_call(outcome: LazyResult) -> str:
    """What failed, in the words of an error message."""
    error = outcome.envelope.error
    return f"task {error.task}" if error is not None and error.task else "the call"


def nothing(payloads: ResultReader, because: str = "") -> LazyResult:
    context = no_value_context(because) if because else {}
    return LazyResult(Envelope(status="ok", context=context), payloads, None)
