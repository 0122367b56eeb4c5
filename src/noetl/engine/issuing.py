"""Issue commands: every `command.issued` event comes with the queue row that a worker claims."""

from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from noetl.engine import expressions
from noetl.engine.expressions import Moment
from noetl.engine.playbook_state import get_visible_state
from noetl.engine.state import Activation, Execution, OpenCommand, PinnedPlaybook
from noetl.model import events as e
from noetl.model.commands import DEFAULT_POOL, Command, Scope
from noetl.model.decisions import Effect, Issue, Requeue, SetTimer
from noetl.model.errors import Failure
from noetl.model.exchange import LEASE_MICROS
from noetl.model.ids import Micros, command_id, timer_id
from noetl.playbook.durations import parse_micros
from noetl.playbook.model import Step
from noetl.playbook.plan import UsedNames
from noetl.playbook.text import is_template

Decision = Iterator[e.Event | Effect]


def issue_run(
    pinned: PinnedPlaybook, state: Execution, activation: Activation, moment: Moment
) -> Decision:
    """Issue the one command that runs the step's pipeline, with the timer of its timeout."""
    timeout = get_step_timeout(pinned, activation)
    timer = timer_id(activation.id, "timeout") if timeout is not None else None
    command = make_command(pinned, state, activation, "run", moment, timeout=timeout)
    yield make_command_issued(command, moment, timer=timer)
    yield Issue(command)
    if timer is not None and timeout is not None:
        due = moment.at + timeout
        if not _may_park(pinned, activation):
            due += LEASE_MICROS  # the worker ends the tool first: its error says more than ours
        yield SetTimer(timer, due)


def _may_park(pinned: PinnedPlaybook, activation: Activation) -> bool:
    """Whether the command may wait without a worker. Only the timer can end it then."""
    tasks = pinned.plan.steps[activation.step].step.tool
    return any(task.kind in ("wait", "playbook") for task in tasks)


def ask_for_evaluation(
    pinned: PinnedPlaybook,
    state: Execution,
    activation: Activation,
    kind: e.CommandKind,
    site: str,
    moment: Moment,
    site_args: dict[str, Any] | None = None,
) -> Decision:
    """Issue a command that evaluates expressions which need data, once per site."""
    if is_held(state):
        return
    if any(command.activation == activation.id for command in state.commands.values()):
        return
    command = make_command(
        pinned,
        state,
        activation,
        kind,
        moment,
        purpose=f"{kind}:{site}",
        site=site,
        site_args=site_args or {},
    )
    yield make_command_issued(command, moment)
    yield Issue(command)


def is_held(state: Execution) -> bool:
    """Whether nothing may be issued: the execution is paused, cancelling, ended or quarantined."""
    return state.paused or state.status != "running" or state.quarantined is not None


def get_step_timeout(pinned: PinnedPlaybook, activation: Activation) -> Micros | None:
    declared = pinned.plan.steps[activation.step].step.spec.timeout
    if declared is None:
        return None
    return parse_micros(declared)


def make_command(
    pinned: PinnedPlaybook,
    state: Execution,
    activation: Activation,
    kind: e.CommandKind,
    moment: Moment,
    *,
    purpose: str | None = None,
    number: int = 0,
    **fields: Any,
) -> Command:
    step = pinned.plan.steps[activation.step].step
    pool = choose_command_pool(pinned, state, activation, kind, moment)
    assert isinstance(pool, str), "a step fails before it issues anything if its pool is no text"
    priority = step.spec.priority
    if priority is None:
        priority = pinned.plan.playbook.executor.spec.priority
    uses = _choose_uses(pinned, activation, kind, fields.get("collection"))
    return Command(
        command_id=command_id(activation.id, purpose or kind, number),
        execution_id=state.execution_id,
        playbook=pinned.plan.hash,
        step=activation.step,
        activation=activation.id,
        kind=kind,
        pool=pool,
        priority=priority,
        tenant=pinned.tenant,
        scope=make_command_scope(pinned, state, activation, uses),
        **fields,
    )


def choose_command_pool(
    pinned: PinnedPlaybook,
    state: Execution,
    activation: Activation,
    kind: e.CommandKind,
    moment: Moment,
) -> str | Failure:
    """The pool of a command. All commands of an activation use the pool rendered for the first."""
    step = pinned.plan.steps[activation.step].step
    if step.spec.pool is None or not is_template(step.spec.pool):
        return get_step_pool(step, kind)
    return activation.pool or _render_pool(pinned, state, activation, moment)


def _render_pool(
    pinned: PinnedPlaybook,
    state: Execution,
    activation: Activation,
    moment: Moment,
) -> str | Failure:
    template = pinned.plan.steps[activation.step].step.spec.pool
    value = expressions.render_server_value(pinned, state, activation, template, moment, "pool")
    if isinstance(value, Failure):
        return replace(value, message=f"spec.pool: {value.message}")
    if isinstance(value, str) and value.strip():
        return value.strip()
    message = f"spec.pool {template!r} gives {value!r}, which names no pool; it must give text"
    return Failure(code="POOL_INVALID", kind="config", message=message)


def get_step_pool(
    step: Step,
    kind: e.CommandKind,
    activation: Activation | None = None,
) -> str:
    """The pool of the step's commands. A rendered pool is known only to an activation that issued
    a command."""
    if is_template(step.spec.pool) and activation is not None:
        return activation.pool or DEFAULT_POOL
    if step.spec.pool:
        return step.spec.pool
    if _needs_spark_pool(step, kind):
        return "spark"
    return DEFAULT_POOL


def _needs_spark_pool(step: Step, kind: e.CommandKind) -> bool:
    if kind == "chunk":
        return step.loop is not None and step.loop.spec.policy.exec == "spark"
    return kind == "run" and any(task.kind == "spark" for task in step.tool)


def _choose_uses(
    pinned: PinnedPlaybook,
    activation: Activation,
    kind: e.CommandKind,
    collection: e.Collection | None,
) -> UsedNames:
    """The names that the command needs. A worker that evaluates `loop.in` needs its names too;
    other commands do not carry them, because their values may be large."""
    plan = pinned.plan.steps[activation.step]
    if kind in ("run", "frame"):
        return plan.body_uses
    if kind == "chunk" and (collection is None or collection.kind == "reference"):
        return plan.body_uses
    return plan.uses


def _select_state(state: Execution, uses: UsedNames) -> dict[str, Any]:
    if uses.state is None:
        return get_visible_state(state)
    if not uses.state:
        return {}
    return _select_names(get_visible_state(state), uses.state)


def make_command_scope(
    pinned: PinnedPlaybook,
    state: Execution,
    activation: Activation,
    uses: UsedNames,
) -> Scope:
    """The scope of a command: only the names that its templates use."""
    workload = pinned.workload
    if uses.workload is not None:
        workload = _select_names(workload, uses.workload)
    ctx = state.ctx
    if uses.ctx is not None:
        ctx = _select_names(ctx, uses.ctx)
    playbook_state = None
    if not pinned.plan.hides_state:
        playbook_state = _select_state(state, uses)
    outer: dict[str, Any] = {}
    if state.parent is not None:
        outer = state.parent.iter
    results = {}
    for step in uses.steps:
        record = state.steps.get(step)
        if record is not None and record.result is not None:
            results[step] = record.result
    return Scope(
        workload=workload,
        workload_by_reference=state.workload_by_reference,
        ctx=ctx,
        state=playbook_state,
        args=activation.args,
        results=results,
        scratch=activation.scratch,
        run=activation.run,
        path=state.path,
        version=state.version,
        event=activation.event,
        own=activation.outcome,
        status=state.finished or state.status,
        error=state.failure,
        failed_step=state.failed_step,
        outer=outer,
    )


def _select_names(values: dict[str, Any], names: frozenset[str]) -> dict[str, Any]:
    return {name: values[name] for name in names if name in values}


def make_command_issued(command: Command, moment: Moment, **fields: Any) -> e.CommandIssued:
    """The event that belongs to the effect `Issue(command)`."""
    collection = command.collection
    if collection is not None and collection.kind == "failed":
        indexes = collection.find_indexes(command.first, command.count)
        fields |= {"repeats": True, "indexes": indexes}
    return e.CommandIssued(
        at=moment.at,
        command_id=command.command_id,
        step=command.step,
        activation=command.activation,
        kind=command.kind,
        pool=command.pool,
        first=command.first,
        count=command.count,
        together=command.together,
        attempts=command.attempts,
        site=command.site,
        **fields,
    )


def requeue(command: OpenCommand, available_at: Micros | None = None) -> Requeue:
    """Put the command back into the queue as its current attempt."""
    return Requeue(command.id, command.attempt, command.journal, available_at)
