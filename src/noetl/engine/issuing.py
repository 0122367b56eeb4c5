"""Issuing commands: the event that says so and the row that a worker claims, always together."""

from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from noetl.engine import sites
from noetl.engine.playbook_state import visible
from noetl.engine.sites import Moment
from noetl.engine.state import Activation, Execution, OpenCommand, PinnedPlaybook
from noetl.model import events as e
from noetl.model.commands import DEFAULT_POOL, Command, Scope
from noetl.model.decisions import Effect, Issue, Requeue, SetTimer
from noetl.model.errors import Failure
from noetl.model.exchange import LEASE
from noetl.model.ids import Micros, command_id, timer_id
from noetl.playbook.durations import micros
from noetl.playbook.model import Step
from noetl.playbook.plan import Uses
from noetl.playbook.text import is_template

Made = Iterator[e.Event | Effect]


def run(fixed: PinnedPlaybook, state: Execution, activation: Activation, moment: Moment) -> Made:
    """The step's pipeline, once."""
    timeout = step_timeout(fixed, activation)
    timer = timer_id(activation.id, "timeout") if timeout is not None else None
    command = command_for(fixed, state, activation, "run", moment, timeout=timeout)
    yield issued(command, moment, timer=timer)
    yield Issue(command)
    if timer is not None and timeout is not None:
        yield SetTimer(timer, moment.at + timeout + (0 if _parks(fixed, activation) else LEASE))


def _parks(fixed: PinnedPlaybook, activation: Activation) -> bool:
    """No worker holds it while it waits: only the timer can end it in time. A worker ends what runs itself, and says more."""
    return any(
        task.kind in ("wait", "playbook") for task in fixed.plan.steps[activation.step].step.tool
    )


def ask(
    fixed: PinnedPlaybook,
    state: Execution,
    activation: Activation,
    kind: e.CommandKind,
    site: str,
    moment: Moment,
    site_args: dict[str, Any] | None = None,
) -> Made:
    """Have a worker evaluate what needs data; asked once per site."""
    if held(state) or any(live.activation == activation.id for live in state.commands.values()):
        return
    purpose = f"{kind}:{site}"
    command = command_for(
        fixed,
        state,
        activation,
        kind,
        moment,
        purpose=purpose,
        site=site,
        site_args=site_args or {},
    )
    yield issued(command, moment)
    yield Issue(command)


def held(state: Execution) -> bool:
    """Nothing is issued while paused, cancelling or ended."""
    return state.paused or state.status != "running" or state.quarantined is not None


def step_timeout(fixed: PinnedPlaybook, activation: Activation) -> Micros | None:
    declared = fixed.plan.steps[activation.step].step.spec.timeout
    return None if declared is None else micros(declared)


def command_for(
    fixed: PinnedPlaybook,
    state: Execution,
    activation: Activation,
    kind: e.CommandKind,
    moment: Moment,
    *,
    purpose: str | None = None,
    number: int = 0,
    **fields: Any,
) -> Command:
    step = fixed.plan.steps[activation.step].step
    pool = pool_for(fixed, state, activation, kind, moment)
    assert isinstance(pool, str), (
        "a step whose pool cannot be rendered fails before it issues anything"
    )
    return Command(
        command_id=command_id(activation.id, purpose or kind, number),
        execution_id=state.execution_id,
        playbook=fixed.plan.hash,
        step=activation.step,
        activation=activation.id,
        kind=kind,
        pool=pool,
        priority=step.spec.priority
        if step.spec.priority is not None
        else fixed.plan.playbook.executor.spec.priority,
        tenant=fixed.tenant,
        scope=scope_for(
            fixed, state, activation, _uses(fixed, activation, kind, fields.get("collection"))
        ),
        **fields,
    )


def pool_for(
    fixed: PinnedPlaybook,
    state: Execution,
    activation: Activation,
    kind: e.CommandKind,
    moment: Moment,
) -> str | Failure:
    """The pool of a command. A template is rendered for the first command of an activation; the others follow it there."""
    step = fixed.plan.steps[activation.step].step
    if step.spec.pool is None or not is_template(step.spec.pool):
        return pool_of(step, kind)
    return activation.pool or _rendered_pool(fixed, state, activation, moment)


def _rendered_pool(
    fixed: PinnedPlaybook, state: Execution, activation: Activation, moment: Moment
) -> str | Failure:
    written = fixed.plan.steps[activation.step].step.spec.pool
    found = sites.value_of(fixed, state, activation, written, moment, "pool")
    if isinstance(found, Failure):
        return replace(found, message=f"spec.pool: {found.message}")
    if isinstance(found, str) and found.strip():
        return found.strip()
    message = f"spec.pool {written!r} gives {found!r}, which names no pool; it must give text"
    return Failure(code="POOL_INVALID", kind="config", message=message)


def pool_of(step: Step, kind: e.CommandKind, activation: Activation | None = None) -> str:
    """`activation` has issued a command: then it knows the pool."""
    if is_template(step.spec.pool) and activation is not None:
        return activation.pool or DEFAULT_POOL
    return step.spec.pool or ("spark" if _on_spark(step, kind) else DEFAULT_POOL)


def _on_spark(step: Step, kind: e.CommandKind) -> bool:
    if kind == "chunk":
        return step.loop is not None and step.loop.spec.policy.exec == "spark"
    return kind == "run" and any(task.kind == "spark" for task in step.tool)


def _uses(
    fixed: PinnedPlaybook,
    activation: Activation,
    kind: e.CommandKind,
    collection: e.Collection | None,
) -> Uses:
    """A command whose items are found by what `in` says needs its names too; whatever they hold, every other is spared them."""
    plan = fixed.plan.steps[activation.step]
    ready = kind in ("run", "frame") or (
        kind == "chunk" and (collection is None or collection.kind == "reference")
    )
    return plan.body if ready else plan.uses


def _state(state: Execution, uses: Uses) -> dict[str, Any]:
    if uses.state is None:
        return visible(state)
    return _only(visible(state), uses.state) if uses.state else {}


def scope_for(fixed: PinnedPlaybook, state: Execution, activation: Activation, uses: Uses) -> Scope:
    """Only the names that its templates use."""
    workload = fixed.workload if uses.workload is None else _only(fixed.workload, uses.workload)
    ctx = state.ctx if uses.ctx is None else _only(state.ctx, uses.ctx)
    results = {}
    for step in uses.steps:
        record = state.steps.get(step)
        if record is not None and record.result is not None:
            results[step] = record.result
    return Scope(
        workload=workload,
        workload_by_reference=state.workload_by_reference,
        ctx=ctx,
        state=None if fixed.plan.hides_state else _state(state, uses),
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
        outer=state.parent.iter if state.parent is not None else {},
    )


def _only(values: dict[str, Any], names: frozenset[str]) -> dict[str, Any]:
    return {name: values[name] for name in names if name in values}


def issued(command: Command, moment: Moment, **fields: Any) -> e.CommandIssued:
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


def requeue(live: OpenCommand, available_at: Micros | None = None) -> Requeue:
    return Requeue(live.id, live.attempt, live.journal, available_at)
