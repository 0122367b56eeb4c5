"""The life of a step: admission, its call, its assignments, its router. One activation at a time.

`proceed` says what an activation does next in the phase it is in; every event that concerns an activation ends there, and so
does resuming after a pause. Whatever an expression needs from data is asked of a worker first; its answer is an event, and the
same question is then answered from the state.
"""

from typing import Any

from noetl.engine import loops, playbook_state, sites, waits
from noetl.engine.fold import FINAL
from noetl.engine.issuing import Made, ask, held, pool_for, run
from noetl.engine.sites import Moment, NeedsWorker
from noetl.engine.state import Activation, Execution, PinnedPlaybook
from noetl.engine.unhandled import failed_origins
from noetl.model import events as e
from noetl.model.envelope import Envelope, failed
from noetl.model.errors import Failure
from noetl.playbook.model import Arc, Step
from noetl.playbook.plan import ADMIT, SET, WHEN, arc_site


def proceed(
    fixed: PinnedPlaybook, state: Execution, activation: Activation, moment: Moment
) -> Made:
    match activation.phase:
        case "admit":
            yield from _admit(fixed, state, activation, moment)
        case "plan":
            yield from loops.plan(fixed, state, activation, moment)
        case "loop":
            yield from loops.go_on(fixed, state, activation, moment)
        case "set":
            yield from _leave(fixed, state, activation, moment)
        case "when":
            yield from _route(fixed, state, activation, moment)
        case "call":
            return


# ---- entering ---------------------------------------------------------------------------


def _admit(fixed: PinnedPlaybook, state: Execution, activation: Activation, moment: Moment) -> Made:
    if held(state):
        return
    plan = fixed.plan.steps[activation.step]
    if plan.step.spec.pool is not None:
        pool = pool_for(fixed, state, activation, "run", moment)
        if isinstance(pool, Failure):
            yield call_error(activation, pool, moment)
            return
    site = plan.site.get(ADMIT)
    if site is None:
        yield from _begin(fixed, state, activation, moment)
        return
    answer = sites.verdicts(fixed, state, activation, site, moment)
    if isinstance(answer, NeedsWorker):
        yield from ask(fixed, state, activation, "evaluate", ADMIT, moment)
        return
    if isinstance(answer, Failure):
        yield call_error(activation, answer, moment)
        return
    admit = plan.step.spec.policy.admit
    assert admit is not None, "a site is there because the rules are"
    for number, (rule, verdict) in enumerate(zip(admit.rules, answer, strict=True)):
        if isinstance(verdict, Failure):
            yield call_error(activation, verdict, moment)
            return
        if verdict and rule.then.allow:
            break
        if verdict:
            following = rule.then.next
            yield e.StepSkipped(
                at=moment.at,
                step=activation.step,
                activation=activation.id,
                rule=number,
                next=following,
                failed_origins=failed_origins(state, activation) if following is None else (),
            )
            return
    yield from _begin(fixed, state, activation, moment)


def _begin(fixed: PinnedPlaybook, state: Execution, activation: Activation, moment: Moment) -> Made:
    step = fixed.plan.steps[activation.step].step
    if step.loop is not None:
        yield from loops.plan(fixed, state, activation, moment)
    elif not step.tool:
        yield e.CallDone(
            at=moment.at, step=step.step, activation=activation.id, result=Envelope(status="ok")
        )
    else:
        yield from run(fixed, state, activation, moment)


# ---- the call ---------------------------------------------------------------------------


def called(
    state: Execution,
    activation: Activation,
    event: e.CommandCompleted | e.CommandFailed,
    moment: Moment,
) -> Made:
    for task in getattr(event, "sinks", ()):
        yield e.SinkProcessed(
            at=moment.at,
            step=event.step,
            activation=activation.id,
            command_id=event.command_id,
            task=task,
        )
    if activation.unwritten is not None:
        yield call_error(activation, activation.unwritten, moment)
        return
    ended = e.CallDone if event.result.ok else e.CallError
    yield ended(
        at=moment.at,
        step=activation.step,
        activation=activation.id,
        result=event.result.bare(),
        command_id=event.command_id,
    )


def call_error(activation: Activation, failure: Failure, moment: Moment) -> e.CallError:
    return e.CallError(
        at=moment.at, step=activation.step, activation=activation.id, result=failed(failure)
    )


def stopped_by(fixed: PinnedPlaybook, activation: Activation) -> Failure:
    """Why the command of the step was told to stop."""
    return activation.unwritten or timed_out(fixed, activation)


def timed_out(fixed: PinnedPlaybook, activation: Activation) -> Failure:
    limit = fixed.plan.steps[activation.step].step.spec.timeout
    message = f"step {activation.step} ran longer than its timeout of {limit}"
    if activation.unclaimed:
        message = f"step {activation.step} did not begin within its timeout of {limit}: {waits.no_worker(activation)}"
    return Failure(code="TIMEOUT", kind="timeout", message=message)


# ---- assignments ------------------------------------------------------------------------


def _leave(fixed: PinnedPlaybook, state: Execution, activation: Activation, moment: Moment) -> Made:
    outcome = activation.outcome or Envelope(status="ok")
    site = fixed.plan.steps[activation.step].site.get(SET)
    values: dict[str, Any] = {}
    result = outcome.bare()
    if site is not None and outcome.ok:
        answer = sites.evaluate(fixed, state, activation, site, moment)
        if isinstance(answer, NeedsWorker):
            yield from ask(fixed, state, activation, "evaluate", SET, moment)
            return
        broken = answer if isinstance(answer, Failure) else _first_failure(site.keys, answer)
        if broken is None and not isinstance(answer, Failure):
            values = dict(zip(site.keys, answer, strict=True))
            broken = playbook_state.refusal(state, values)
        if broken is not None:
            values, result = {}, failed(broken)
    yield e.StepExit(
        at=moment.at, step=activation.step, activation=activation.id, result=result, set=values
    )


def _first_failure(keys: tuple[str, ...], values: list[Any]) -> Failure | None:
    for key, value in zip(keys, values, strict=True):
        if isinstance(value, Failure):
            place = key.replace(":", " ", 1) if ":" in key else f"set {key}"
            return Failure(code=value.code, kind=value.kind, message=f"{place}: {value.message}")
    return None


# ---- the router -------------------------------------------------------------------------


def _route(fixed: PinnedPlaybook, state: Execution, activation: Activation, moment: Moment) -> Made:
    plan = fixed.plan.steps[activation.step]
    arcs = plan.step.next.arcs if plan.step.next is not None and activation.cause != FINAL else []
    if not arcs:
        yield _evaluated(activation, moment, order=plan.order)
        return
    if not _went_well(activation) and not plan.error_arcs:
        untried = tuple(e.Verdict(arc.step, "untried") for arc in arcs)
        yield _evaluated(activation, moment, order=plan.order, verdicts=untried)
        return
    answer = sites.verdicts(fixed, state, activation, plan.site[WHEN], moment)
    if isinstance(answer, NeedsWorker):
        yield from ask(fixed, state, activation, "evaluate", WHEN, moment)
        return
    if isinstance(answer, Failure):
        yield _evaluated(activation, moment, order=plan.order, error=answer)
        return
    taken, verdicts, broken = _choose(fixed, state, activation, arcs, answer, moment)
    if broken is not None:
        yield _evaluated(activation, moment, order=plan.order, verdicts=verdicts, error=broken)
        return
    yield from _follow(fixed, state, activation, taken, verdicts, moment)


def _choose(
    fixed: PinnedPlaybook,
    state: Execution,
    activation: Activation,
    arcs: list[Arc],
    answer: list[Any],
    moment: Moment,
) -> tuple[list[int], tuple[e.Verdict, ...], Failure | None]:
    """Which arcs are taken, the verdict on each, and the failure of a guard that was tried."""
    plan = fixed.plan.steps[activation.step]
    router = plan.step.next
    exclusive = router is None or router.spec.mode == "exclusive"
    went_well = _went_well(activation)
    taken: list[int] = []
    verdicts: list[e.Verdict] = []
    for number, arc in enumerate(arcs):
        handles_this = went_well or number in plan.error_arcs
        untried = (exclusive and taken) or not handles_this
        verdict = True if arc.when is None else answer[number]
        seen = (
            {}
            if untried or arc.when is None
            else sites.saw(fixed, state, activation, plan.site[WHEN], number, moment)
        )
        if untried:
            verdicts.append(e.Verdict(arc.step, "untried"))
        elif isinstance(verdict, Failure):
            verdicts.append(e.Verdict(arc.step, "error", seen))
            message = f"guard of the arc to {arc.step}: {verdict.message}"
            return (
                [],
                tuple(verdicts),
                Failure(code=verdict.code, kind=verdict.kind, message=message),
            )
        else:
            verdicts.append(e.Verdict(arc.step, "taken" if verdict else "false", seen))
            taken += [number] if verdict else []
    return taken, tuple(verdicts), None


def _follow(
    fixed: PinnedPlaybook,
    state: Execution,
    activation: Activation,
    taken: list[int],
    verdicts: tuple[e.Verdict, ...],
    moment: Moment,
) -> Made:
    plan = fixed.plan.steps[activation.step]
    assigned: dict[str, Any] = {}
    chosen: dict[str, e.Chosen] = {}
    for number in taken:
        site = plan.site.get(arc_site(number))
        values: dict[str, Any] = {}
        if site is not None:
            answer = sites.evaluate(fixed, state, activation, site, moment)
            if isinstance(answer, NeedsWorker):
                yield from ask(fixed, state, activation, "evaluate", site.name, moment)
                return
            broken = answer if isinstance(answer, Failure) else _first_failure(site.keys, answer)
            if broken is not None or isinstance(answer, Failure):
                yield _evaluated(
                    activation, moment, order=plan.order, verdicts=verdicts, error=broken
                )
                return
            values = dict(zip(site.keys, answer, strict=True))
        args = {key[5:]: value for key, value in values.items() if key.startswith("args:")}
        assigned |= {key[4:]: value for key, value in values.items() if key.startswith("set:")}
        target = _arc(plan.step, number).step
        earlier = chosen.get(target)
        merged = {**earlier.args, **args} if earlier is not None else args
        chosen[target] = e.Chosen(
            arc=earlier.arc if earlier is not None else number, step=target, args=merged
        )
    refused = playbook_state.refusal(state, assigned)
    if refused is not None:
        yield _evaluated(activation, moment, order=plan.order, verdicts=verdicts, error=refused)
        return
    error = _no_next(fixed, activation) if not chosen else None
    made = tuple(chosen.values())
    recovered = bool(made) and not _went_well(activation)
    yield _evaluated(
        activation,
        moment,
        order=plan.order,
        verdicts=verdicts,
        chosen=made,
        set=assigned,
        error=error,
        recovered=recovered,
    )


def _went_well(activation: Activation) -> bool:
    return activation.outcome is None or activation.outcome.ok


def _arc(step: Step, number: int) -> Arc:
    assert step.next is not None, "an arc was taken"
    return step.next.arcs[number]


def _no_next(fixed: PinnedPlaybook, activation: Activation) -> Failure | None:
    if not (_went_well(activation) and fixed.plan.playbook.executor.spec.no_next_is_error):
        return None
    return Failure(
        code="NO_NEXT",
        kind="router",
        message=f"no arc of step {activation.step} matched (no_next_is_error)",
    )


def _evaluated(
    activation: Activation, moment: Moment, *, error: Failure | None = None, **fields: Any
) -> e.NextEvaluated:
    original = activation.outcome.error if activation.outcome is not None else None
    both = original.followed_by(error) if original is not None and error is not None else None
    return e.NextEvaluated(
        at=moment.at,
        step=activation.step,
        activation=activation.id,
        event=activation.event,
        error=error,
        failure=both,
        **fields,
    )
