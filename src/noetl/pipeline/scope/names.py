"""The names that templates of a pipeline see, and the assignments that change them.

Bare names, strongest first: scope names, the iterator, tasks of this pipeline, steps, workload.
"""

from dataclasses import dataclass, field
from typing import Any

from msgspec import Struct

from noetl.model.commands import Command
from noetl.model.envelope import Envelope, make_no_value_context
from noetl.model.errors import Failure
from noetl.model.playbook_state import find_value_problem
from noetl.pipeline.failures import TaskFailed
from noetl.pipeline.scope.lazy_results import (
    LazyResult,
    resolve_ctx_links,
    response_value,
    value_or_undefined,
)
from noetl.pipeline.scope.results import ResultReader
from noetl.playbook.assignments import full_name, place_value, split_full_name
from noetl.playbook.reducers import NOTHING_FOLDED, fold_write, reduce_write
from noetl.template.errors import FailedError
from noetl.template.scopes import (
    IDENTITY_NAMES,
    build_handled_event,
    build_identity,
    build_iteration,
    build_outer_iteration,
    build_output_facts,
)
from noetl.template.values import NO_ERROR, OptionalMap, Undefined

RESERVED_NAMES = IDENTITY_NAMES | {"workload", "keychain"}
# In the journal of an item that is alone in its command: its writes with a reducer.
REDUCED_WRITES = "iter._reduced"


class LoopItem(Struct, frozen=True):
    """One iteration. `size` is None if it is unknown, as for a cursor."""

    index: int
    value: Any
    iterator: str
    size: int | None
    loop_id: str = ""

    def make_names(self, written: dict[str, Any]) -> dict[str, Any]:
        """The names of the iteration.

        `written` holds its assignments to `iter`, and the outer iteration.
        """
        return build_iteration(
            self.index, self.value, self.iterator, self.size, self.loop_id, written
        )


@dataclass(slots=True)
class ScopeWrites:
    """`ctx` and `state` as the items of one chunk change them.

    Items of a sequential loop share them; others may only reduce.
    """

    ctx: dict[str, Any]
    scratch: dict[str, Any]
    state: dict[str, Any] | None = None
    # The full name of a target with a reducer: (the name as written, the reducer).
    reducers: dict[str, tuple[str, str]] = field(default_factory=dict)
    direct: bool = True
    # Assignments since the last journal entry, by full name.
    changed: dict[str, Any] = field(default_factory=dict)
    # Names with a value that stands in the playbook, without a template.
    literal: set[str] = field(default_factory=set)

    def write(self, name: str, value: Any) -> None:
        """Set the value that templates see."""
        root, path = split_full_name(name)
        if root == "state":
            self.state = place_value(self.state or {}, path, value)
        elif root == "ctx":
            self.ctx = place_value(self.ctx, path, value)
        else:
            self.scratch = place_value(self.scratch, path, value)


class CommandNames(Struct, frozen=True):
    """The names that a command brings: the same for all its items."""

    command: Command
    payloads: ResultReader
    args: dict[str, Any]
    fixed: dict[str, Any]
    outer: dict[str, Any]  # the iteration of the parent execution that started this one

    @classmethod
    def from_command(
        cls,
        command: Command,
        payloads: ResultReader,
        steps_used: frozenset[str],
    ) -> "CommandNames":
        """`steps_used` are the steps that the templates read.

        Those without a result have not run.
        """
        scope = command.scope
        args = {name: resolve_ctx_links(value, payloads) for name, value in scope.args.items()}
        steps: dict[str, Any] = {}
        for name, envelope in scope.results.items():
            steps[name] = value_or_undefined(LazyResult(envelope, payloads), name, f"step {name}")
            if envelope.reference is not None:
                payloads.allowed_uris.add(envelope.reference.uri)
        fixed: dict[str, Any] = {}
        for name in steps_used:
            if name not in steps:
                fixed[name] = Undefined(name, name, "step")
        fixed.update(scope.workload)
        fixed.update(steps)
        fixed.update(_identity_names(command))
        fixed["workload"] = scope.workload
        fixed["keychain"] = payloads.keychain
        outer = {name: resolve_ctx_links(value, payloads) for name, value in scope.outer.items()}
        if outer:
            fixed["_loop"] = build_outer_iteration(outer)
        return cls(command, payloads, args, fixed, outer)


def make_keychain_names(command: Command) -> dict[str, Any]:
    """The names that the templates of keychain entries see, beside the other entries."""
    workload = command.scope.workload
    return {
        **workload,
        **_identity_names(command),
        "workload": workload,
    }


def _identity_names(command: Command) -> dict[str, Any]:
    scope = command.scope
    status = scope.status or "running"
    return build_identity(
        command.execution_id, scope.path, scope.version, status, scope.error, scope.failed_step
    )


class TemplateScope:
    """The scope of one pipeline, built again for every rendering."""

    def __init__(
        self,
        issued: CommandNames,
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
        self.input = issued.args  # the input of the current task, once it is rendered
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

    def make_scope(
        self,
        finished: LazyResult | None = None,
        task: str | None = None,
        **more: Any,
    ) -> dict[str, Any]:
        """The names that a template sees.

        `finished` is the outcome of `task` that the template looks at. Without one, it is the
        outcome of the last task.
        """
        outcome = finished or self.last
        tasks = self.tasks
        if finished is not None and task is not None and finished.envelope.ok:
            tasks = {**tasks, task: finished}
        names = dict(self._fixed)
        if self.writes.state is not None:
            names["state"] = self.writes.state
        values: dict[str, Any] = {}
        for name, stored in tasks.items():
            values[name] = value_or_undefined(stored, name, f"task {name}")
            if name not in RESERVED_NAMES:
                names[name] = values[name]
        names["ctx"] = names["vars"] = self.writes.ctx
        names["input"] = self.input
        names["step"] = {**self.writes.scratch, **self.own_step}
        names["results"] = _results_map(values)
        names["_prev"] = self._previous_value()
        if self.item is None:
            names["iter"] = {**self.outer, **self.writes.scratch}
        else:
            names |= self.item.make_names({**self.outer, **self.iter})
        if outcome is not None:
            names |= self.make_output_names(outcome)
        else:
            names["event"] = self._handled_event(self._command.scope.event)
        names |= more
        names["args"] = names["input"]
        return names

    def _previous_value(self) -> LazyResult | Undefined | None:
        """The last good value. Undefined if all tasks failed; None before the first task."""
        last = self.prev or self.last
        if last is None:
            return None
        return value_or_undefined(last, "_prev", describe_failed_call(last))

    def make_output_names(self, outcome: LazyResult) -> dict[str, Any]:
        """The names that show the outcome of a task."""
        envelope = outcome.envelope
        missing = value_or_undefined(outcome, "output.data", describe_failed_call(outcome))
        value: Any
        if isinstance(missing, Undefined):
            value = missing
            shown = OptionalMap(build_output_facts(envelope), "error", undefined={"data": missing})
        else:
            value = response_value(outcome)
            shown = OptionalMap({**build_output_facts(envelope), "data": value}, "error")
        names: dict[str, Any] = {
            "output": shown,
            "outcome": shown,
            "response": value,
            "result": value,
        }
        names["event"] = self._handled_event("call.done" if envelope.ok else "call.error")
        names["error"] = NO_ERROR if envelope.error is None else envelope.error.to_template_map()
        return names

    def _handled_event(self, name: str) -> dict[str, Any]:
        return build_handled_event(name, self._command.step, self._now)

    def assign_value(
        self,
        target: str,
        value: Any,
        *,
        literal: bool = False,
    ) -> None:
        """Assign a value. `literal` says that it stands in the playbook, without a template."""
        name = full_name(target)
        root, path = split_full_name(name)
        writes = self.writes
        if root == "state":
            value = self._check_state_value(path, value)
        if literal:
            writes.literal.add(name)
        else:
            writes.literal.discard(name)
        if root == "iter" and self.item is not None:
            self.iter = place_value(self.iter, path, value)
            if self._journaled:
                writes.changed[name] = value
        elif name in writes.reducers:
            self._check_reduction(name, value)
            self.reduced.append((name, value))
            if self._journaled:
                writes.changed[REDUCED_WRITES] = [list(write) for write in self.reduced]
        elif writes.direct or (root == "step" and self.item is None):
            writes.write(name, value)
            writes.changed[name] = value
        elif root == "step":  # items that run in parallel share no scratch
            self.own_step = place_value(self.own_step, path, value)
        else:
            hint = f"declare loop.spec.reduce: {{{name}: …}}"
            message = f"an item of a parallel loop writes {name}, which has no reducer: {hint}"
            raise TaskFailed(Failure(code="NO_REDUCER", kind="config", message=message))

    def _check_state_value(self, path: tuple[str, ...], value: Any) -> Any:
        """The value, if state may hold it. A whole result is refused."""
        state = place_value(self.writes.state or {}, path, value)
        problem = find_value_problem(path[0], state[path[0]])
        if problem is not None:
            raise TaskFailed(Failure(code="STATE_VALUE", kind="state", message=problem))
        return value

    def _check_reduction(self, name: str, value: Any) -> None:
        """Fail now if the reducer cannot take the value."""
        _, reducer = self.writes.reducers[name]
        try:
            reduce_write(reducer, value)
        except FailedError as error:
            failure = Failure(code="REDUCE_FAILED", kind="config", message=f"{name}: {error}")
            raise TaskFailed(failure) from error

    def restore_writes(self, values: dict[str, Any]) -> None:
        """Restore the assignments of earlier attempts."""
        for name, value in values.items():
            if name == REDUCED_WRITES:
                self.reduced = [
                    (target, resolve_ctx_links(written, self.payloads)) for target, written in value
                ]
            elif name.startswith("iter.") and self.item is not None:
                _, path = split_full_name(name)
                self.iter = place_value(self.iter, path, resolve_ctx_links(value, self.payloads))
            elif name.startswith("state."):
                self.writes.write(name, value)
            else:
                self.writes.write(name, resolve_ctx_links(value, self.payloads))


def make_loop_id(command: Command) -> str:
    """Names the loop of an item, in the form that older documents use."""
    return f"{command.execution_id}:{command.step}"


def fold_reduced_writes(
    reduce: dict[str, tuple[str, str]], writes: list[tuple[str, Any]]
) -> dict[str, Any]:
    """Fold writes, in the order of the items, into one partial value per reducer."""
    partials: dict[str, Any] = {}
    for name, value in writes:
        written, reducer = reduce[name]
        partials[written] = fold_write(reducer, partials.get(written, NOTHING_FOLDED), value)
    return partials


def _results_map(values: dict[str, LazyResult | Undefined]) -> dict[str, Any]:
    """`results`: a failed task is not in the map, but its facts can be read."""
    undefined = {task: value for task, value in values.items() if isinstance(value, Undefined)}
    if not undefined:
        return dict(values)
    return OptionalMap(
        {task: value for task, value in values.items() if task not in undefined},
        undefined=undefined,
    )


def describe_failed_call(outcome: LazyResult) -> str:
    """Names what failed, for an error message."""
    error = outcome.envelope.error
    if error is None or not error.task:
        return "the call"
    return f"task {error.task}"


def empty_result(payloads: ResultReader, because: str = "") -> LazyResult:
    """The result of a pipeline that has no value. `because` says why not."""
    context: dict[str, Any] = {}
    if because:
        context = make_no_value_context(because)
    return LazyResult(Envelope(status="ok", context=context), payloads, None)
