"""The life of a step: admission, its call, its assignments, its router. One activation at a time.

The phase of an activation decides what it does next. Every event of an activation leads to that
decision, and so does resuming after a pause. If an expression needs data, a worker evaluates it
first. Its answer is an event; the expression then takes its value from the state.
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
    pinned: PinnedPlaybook,
    state: Execution,
    activation: Activation,
    moment: Moment,
) -> Made:
    match activation.phase:
        case "admit":
            yield from _admit(pinned, state, activation, moment)
        case "plan":
            yield from loops.plan(pinned, state, activation, moment)
        case "loop":
            yield from loops.go_on(pinned, state, activation, moment)
        case "set":
            yield from _leave(pinned, state, activation, moment)
        case "when":
            yield from _route(pinned, state, activation, moment)
        case "call":
            return


# ---- entering ---------------------------------------------------------------------------


def _admit(
    pinned: PinnedPlaybook,
    state: Execution,
    activation: Activation,
    moment: Moment,
) -> Made:
    if held(state):
        return
    plan = pinned.plan.steps[activation.step]
    if plan.step.spec.pool is not None:
        pool = pool_for(pinned, state, activation, "run", moment)
        if isinstance(pool, Failure):
            yield call_error(activation, pool, moment)
            return
    site = plan.site.get(ADMIT)
    if site is None:
        yield from _begin(pinned, state, activation, moment)
        return
    answer = sites.verdicts(pinned, state, activation, site, moment)
    if isinstance(answer, NeedsWorker):
        yield from ask(pinned, state, activation, "evaluate", ADMIT, moment)
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
        if not verdict:
            continue
        if rule.then.allow:
            break
        yield _make_step_skipped(state, activation, number, rule.then.next, moment)
        return
    yield from _begin(pinned, state, activation, moment)


def _make_step_skipped(
    state: Execution,
    activation: Activation,
    rule: int,
    next_step: str | None,
    moment: Moment,
) -> e.StepSkipped:
    unhandled: tuple[str, ...] = ()
    if next_step is None:
        unhandled = failed_origins(state, activation)
    return e.StepSkipped(
        at=moment.at,
        step=activation.step,
        activation=activation.id,
        rule=rule,
        next=next_step,
        failed_origins=unhandled,
    )


def _begin(
    pinned: PinnedPlaybook,
    state: Execution,
    activation: Activation,
    moment: Moment,
) -> Made:
    """Start the loop or the pipeline of an admitted step."""
    step = pinned.plan.steps[activation.step].step
    if step.loop is not None:
        yield from loops.plan(pinned, state, activation, moment)
    elif not step.tool:
        yield e.CallDone(
            at=moment.at,
            step=step.step,
            activation=activation.id,
            result=Envelope(status="ok"),
        )
    else:
        yield from run(pinned, state, activation, moment)


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
    event_type = e.CallDone if event.result.ok else e.CallError
    yield event_type(
        at=moment.at,
        step=activation.step,
        activation=activation.id,
        result=event.result.bare(),
        command_id=event.command_id,
    )


def call_error(activation: Activation, failure: Failure, moment: Moment) -> e.CallError:
    return e.CallError(
        at=moment.at,
        step=activation.step,
        activation=activation.id,
        result=failed(failure),
    )


def stopped_by(pinned: PinnedPlaybook, activation: Activation) -> Failure:
    """The failure because of which the step's command is stopped."""
    return activation.unwritten or timed_out(pinned, activation)


def timed_out(pinned: PinnedPlaybook, activation: Activation) -> Failure:
    limit = pinned.plan.steps[activation.step].step.spec.timeout
    message = f"step {activation.step} ran longer than its timeout of {limit}"
    if activation.unclaimed:
        reason = waits.no_worker(activation)
        message = f"step {activation.step} did not begin within its timeout of {limit}: {reason}"
    return Failure(code="TIMEOUT", kind="timeout", message=message)


# ---- assignments ------------------------------------------------------------------------


def _leave(
    pinned: PinnedPlaybook,
    state: Execution,
    activation: Activation,
    moment: Moment,
) -> Made:
    """Evaluate the step's `set` and exit. A failed assignment fails the step."""
    outcome = activation.outcome or Envelope(status="ok")
    site = pinned.plan.steps[activation.step].site.get(SET)
    values: dict[str, Any] = {}
    result = outcome.bare()
    if site is not None and outcome.ok:
        answer = sites.evaluate(pinned, state, activation, site, moment)
        if isinstance(answer, NeedsWorker):
            yield from ask(pinned, state, activation, "evaluate", SET, moment)
            return
        assignments = _map_answer_to_keys(site.keys, answer)
        if isinstance(assignments, Failure):
            failure: Failure | None = assignments
        else:
            values = assignments
            failure = playbook_state.refusal(state, values)
        if failure is not None:
            values, result = {}, failed(failure)
    yield e.StepExit(
        at=moment.at,
        step=activation.step,
        activation=activation.id,
        result=result,
        set=values,
    )


def _map_answer_to_keys(
    keys: tuple[str, ...], answer: list[Any] | Failure
) -> dict[str, Any] | Failure:
    """The values of a site by key, or the first failure among them."""
    if isinstance(answer, Failure):
        return answer
    for key, value in zip(keys, answer, strict=True):
        if isinstance(value, Failure):
            place = f"set {key}"
            if ":" in key:
                place = key.replace(":", " ", 1)
            return Failure(code=value.code, kind=value.kind, message=f"{place}: {value.message}")
    return dict(zip(keys, answer, strict=True))


# ---- the router -------------------------------------------------------------------------


def _route(
    pinned: PinnedPlaybook,
    state: Execution,
    activation: Activation,
    moment: Moment,
) -> Made:
    plan = pinned.plan.steps[activation.step]
    router = plan.step.next
    if router is None or not router.arcs or activation.cause == FINAL:
        yield _evaluated(activation, moment, order=plan.order)
        return
    arcs = router.arcs
    if not _went_well(activation) and not plan.error_arcs:
        untried = tuple(e.Verdict(arc.step, "untried") for arc in arcs)
        yield _evaluated(activation, moment, order=plan.order, verdicts=untried)
        return
    answer = sites.verdicts(pinned, state, activation, plan.site[WHEN], moment)
    if isinstance(answer, NeedsWorker):
        yield from ask(pinned, state, activation, "evaluate", WHEN, moment)
        return
    if isinstance(answer, Failure):
        yield _evaluated(activation, moment, order=plan.order, error=answer)
        return
    taken_arcs, verdicts, failure = _choose(pinned, state, activation, arcs, answer, moment)
    if failure is not None:
        yield _evaluated(activation, moment, order=plan.order, verdicts=verdicts, error=failure)
        return
    yield from _follow(pinned, state, activation, taken_arcs, verdicts, moment)


def _choose(
    pinned: PinnedPlaybook,
    state: Execution,
    activation: Activation,
    arcs: list[Arc],
    answer: list[Any],
    moment: Moment,
) -> tuple[list[int], tuple[e.Verdict, ...], Failure | None]:
    """The numbers of the taken arcs, the verdict on each arc, and the failure of a guard."""
    plan = pinned.plan.steps[activation.step]
    router = plan.step.next
    exclusive = router is None or router.spec.mode == "exclusive"
    went_well = _went_well(activation)
    taken_arcs: list[int] = []
    verdicts: list[e.Verdict] = []
    for number, arc in enumerate(arcs):
        handles_outcome = went_well or number in plan.error_arcs
        if (exclusive and taken_arcs) or not handles_outcome:
            verdicts.append(e.Verdict(arc.step, "untried"))
            continue
        verdict: Any = True
        seen: dict[str, Any] = {}
        if arc.when is not None:
            verdict = answer[number]
            seen = sites.saw(pinned, state, activation, plan.site[WHEN], number, moment)
        if isinstance(verdict, Failure):
            verdicts.append(e.Verdict(arc.step, "error", seen))
            message = f"guard of the arc to {arc.step}: {verdict.message}"
            failure = Failure(code=verdict.code, kind=verdict.kind, message=message)
            return [], tuple(verdicts), failure
        if verdict:
            verdicts.append(e.Verdict(arc.step, "taken", seen))
            taken_arcs.append(number)
        else:
            verdicts.append(e.Verdict(arc.step, "false", seen))
    return taken_arcs, tuple(verdicts), None


def _follow(
    pinned: PinnedPlaybook,
    state: Execution,
    activation: Activation,
    taken_arcs: list[int],
    verdicts: tuple[e.Verdict, ...],
    moment: Moment,
) -> Made:
    """Evaluate `set` and `args` of the taken arcs. Two arcs to one step become one choice."""
    plan = pinned.plan.steps[activation.step]
    assigned_values: dict[str, Any] = {}
    chosen: dict[str, e.Chosen] = {}
    for number in taken_arcs:
        site = plan.site.get(arc_site(number))
        values: dict[str, Any] = {}
        if site is not None:
            answer = sites.evaluate(pinned, state, activation, site, moment)
            if isinstance(answer, NeedsWorker):
                yield from ask(pinned, state, activation, "evaluate", site.name, moment)
                return
            evaluated = _map_answer_to_keys(site.keys, answer)
            if isinstance(evaluated, Failure):
                yield _evaluated(
                    activation,
                    moment,
                    order=plan.order,
                    verdicts=verdicts,
                    error=evaluated,
                )
                return
            values = evaluated
        args = {key[5:]: value for key, value in values.items() if key.startswith("args:")}
        assigned_values |= {
            key[4:]: value for key, value in values.items() if key.startswith("set:")
        }
        target = _arc(plan.step, number).step
        first_arc = number
        earlier = chosen.get(target)
        if earlier is not None:
            first_arc = earlier.arc
            args = {**earlier.args, **args}
        chosen[target] = e.Chosen(arc=first_arc, step=target, args=args)
    refusal = playbook_state.refusal(state, assigned_values)
    if refusal is not None:
        yield _evaluated(activation, moment, order=plan.order, verdicts=verdicts, error=refusal)
        return
    error = _no_next(pinned, activation) if not chosen else None
    recovered = bool(chosen) and not _went_well(activation)
    yield _evaluated(
        activation,
        moment,
        order=plan.order,
        verdicts=verdicts,
        chosen=tuple(chosen.values()),
        set=assigned_values,
        error=error,
        recovered=recovered,
    )


def _went_well(activation: Activation) -> bool:
    return activation.outcome is None or activation.outcome.ok


def _arc(step: Step, number: int) -> Arc:
    assert step.next is not None, "an arc was taken"
    return step.next.arcs[number]


def _no_next(pinned: PinnedPlaybook, activation: Activation) -> Failure | None:
    if not (_went_well(activation) and pinned.plan.playbook.executor.spec.no_next_is_error):
        return None
    return Failure(
        code="NO_NEXT",
        kind="router",
        message=f"no arc of step {activation.step} matched (no_next_is_error)",
    )


def _evaluated(
    activation: Activation,
    moment: Moment,
    *,
    error: Failure | None = None,
    **fields: Any,
) -> e.NextEvaluated:
    """The event of the router. `failure` joins both errors if the router fails after the step."""
    joined_failure = None
    if error is not None and activation.outcome is not None:
        step_error = activation.outcome.error
        if step_error is not None:
            joined_failure = step_error.followed_by(error)
    return e.NextEvaluated(
        at=moment.at,
        step=activation.step,
        activation=activation.id,
        event=activation.event,
        error=error,
        failure=joined_failure,
        **fields,
    )
