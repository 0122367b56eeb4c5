"""The life of a step: admission, its call, its assignments, its router. One activation at a time.

The phase of an activation decides what it does next. Every event of an activation leads to that
decision, and so does resuming after a pause. If an expression needs data, a worker evaluates it
first. Its answer is an event; the expression then takes its value from the state.
"""

from typing import Any

from noetl.engine import expressions, loops, playbook_state, waits
from noetl.engine.expressions import Moment, NeedsWorker
from noetl.engine.fold import FINAL_CAUSE
from noetl.engine.issuing import (
    Decision,
    ask_for_evaluation,
    choose_command_pool,
    is_held,
    issue_run,
)
from noetl.engine.state import Activation, Execution, PinnedPlaybook
from noetl.engine.unhandled import list_failed_origins
from noetl.model import events as e
from noetl.model.envelope import Envelope, make_failed_envelope
from noetl.model.errors import Failure
from noetl.playbook.model import Arc, Step
from noetl.playbook.plan import ADMIT, SET, WHEN, name_arc_site


def proceed_activation(
    pinned: PinnedPlaybook,
    state: Execution,
    activation: Activation,
    moment: Moment,
) -> Decision:
    """What follows in the activation's phase. A step in its call waits for its command."""
    match activation.phase:
        case "admit":
            return _admit_activation(pinned, state, activation, moment)
        case "plan":
            return loops.plan_epoch(pinned, state, activation, moment)
        case "loop":
            return loops.continue_loop(pinned, state, activation, moment)
        case "set":
            return _exit_step(pinned, state, activation, moment)
        case "when":
            return _route(pinned, state, activation, moment)
        case "call":
            return iter(())


# ---- entering ---------------------------------------------------------------------------


def _admit_activation(
    pinned: PinnedPlaybook,
    state: Execution,
    activation: Activation,
    moment: Moment,
) -> Decision:
    if is_held(state):
        return
    plan = pinned.plan.steps[activation.step]
    if plan.step.spec.pool is not None:
        pool = choose_command_pool(pinned, state, activation, "run", moment)
        if isinstance(pool, Failure):
            yield make_call_error(activation, pool, moment)
            return
    site = plan.site.get(ADMIT)
    if site is None:
        yield from _begin_work(pinned, state, activation, moment)
        return
    answer = expressions.evaluate_guards(pinned, state, activation, site, moment)
    if isinstance(answer, NeedsWorker):
        yield from ask_for_evaluation(pinned, state, activation, "evaluate", ADMIT, moment)
        return
    if isinstance(answer, Failure):
        yield make_call_error(activation, answer, moment)
        return
    admit = plan.step.spec.policy.admit
    assert admit is not None, "a site is there because the rules are"
    for number, (rule, verdict) in enumerate(zip(admit.rules, answer, strict=True)):
        if isinstance(verdict, Failure):
            yield make_call_error(activation, verdict, moment)
            return
        if not verdict:
            continue
        if rule.then.allow:
            break
        yield _make_step_skipped(state, activation, number, rule.then.next, moment)
        return
    yield from _begin_work(pinned, state, activation, moment)


def _make_step_skipped(
    state: Execution,
    activation: Activation,
    rule: int,
    next_step: str | None,
    moment: Moment,
) -> e.StepSkipped:
    unhandled: tuple[str, ...] = ()
    if next_step is None:
        unhandled = list_failed_origins(state, activation)
    return e.StepSkipped(
        at=moment.at,
        step=activation.step,
        activation=activation.id,
        rule=rule,
        next=next_step,
        failed_origins=unhandled,
    )


def _begin_work(
    pinned: PinnedPlaybook,
    state: Execution,
    activation: Activation,
    moment: Moment,
) -> Decision:
    """Start the loop or the pipeline of an admitted step."""
    step = pinned.plan.steps[activation.step].step
    if step.loop is not None:
        return loops.plan_epoch(pinned, state, activation, moment)
    if step.tool:
        return issue_run(pinned, state, activation, moment)
    done = e.CallDone(
        at=moment.at,
        step=step.step,
        activation=activation.id,
        result=Envelope(status="ok"),
    )
    return iter((done,))


# ---- the call ---------------------------------------------------------------------------


def finish_call(
    state: Execution,
    activation: Activation,
    event: e.CommandCompleted | e.CommandFailed,
    moment: Moment,
) -> Decision:
    for task in getattr(event, "sinks", ()):
        yield e.SinkProcessed(
            at=moment.at,
            step=event.step,
            activation=activation.id,
            command_id=event.command_id,
            task=task,
        )
    if activation.unwritten is not None:
        yield make_call_error(activation, activation.unwritten, moment)
        return
    event_type = e.CallDone if event.result.ok else e.CallError
    yield event_type(
        at=moment.at,
        step=activation.step,
        activation=activation.id,
        result=event.result.without_context(),
        command_id=event.command_id,
    )


def make_call_error(activation: Activation, failure: Failure, moment: Moment) -> e.CallError:
    return e.CallError(
        at=moment.at,
        step=activation.step,
        activation=activation.id,
        result=make_failed_envelope(failure),
    )


def find_stop_reason(pinned: PinnedPlaybook, activation: Activation) -> Failure:
    """The failure because of which the step's command is stopped."""
    return activation.unwritten or make_step_timeout(pinned, activation)


def make_step_timeout(pinned: PinnedPlaybook, activation: Activation) -> Failure:
    limit = pinned.plan.steps[activation.step].step.spec.timeout
    message = f"step {activation.step} ran longer than its timeout of {limit}"
    if activation.unclaimed:
        reason = waits.describe_missing_worker(activation)
        message = f"step {activation.step} did not begin within its timeout of {limit}: {reason}"
    return Failure(code="TIMEOUT", kind="timeout", message=message)


# ---- assignments ------------------------------------------------------------------------


def _exit_step(
    pinned: PinnedPlaybook,
    state: Execution,
    activation: Activation,
    moment: Moment,
) -> Decision:
    """Evaluate the step's `set` and exit. A failed assignment fails the step."""
    outcome = activation.outcome or Envelope(status="ok")
    site = pinned.plan.steps[activation.step].site.get(SET)
    values: dict[str, Any] = {}
    result = outcome.without_context()
    if site is not None and outcome.ok:
        answer = expressions.evaluate_on_server(pinned, state, activation, site, moment)
        if isinstance(answer, NeedsWorker):
            yield from ask_for_evaluation(pinned, state, activation, "evaluate", SET, moment)
            return
        assignments = _map_answer_to_keys(site.keys, answer)
        if isinstance(assignments, Failure):
            failure: Failure | None = assignments
        else:
            values = assignments
            failure = playbook_state.find_write_refusal(state, values)
        if failure is not None:
            values, result = {}, make_failed_envelope(failure)
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
) -> Decision:
    plan = pinned.plan.steps[activation.step]
    router = plan.step.next
    if router is None or not router.arcs or activation.cause == FINAL_CAUSE:
        yield _make_next_evaluated(activation, moment, order=plan.order)
        return
    arcs = router.arcs
    if not _has_succeeded(activation) and not plan.error_arcs:
        untried = tuple(e.Verdict(arc.step, "untried") for arc in arcs)
        yield _make_next_evaluated(activation, moment, order=plan.order, verdicts=untried)
        return
    answer = expressions.evaluate_guards(pinned, state, activation, plan.site[WHEN], moment)
    if isinstance(answer, NeedsWorker):
        yield from ask_for_evaluation(pinned, state, activation, "evaluate", WHEN, moment)
        return
    if isinstance(answer, Failure):
        yield _make_next_evaluated(activation, moment, order=plan.order, error=answer)
        return
    taken_arcs, verdicts, failure = _choose_arcs(pinned, state, activation, arcs, answer, moment)
    if failure is not None:
        yield _make_next_evaluated(
            activation, moment, order=plan.order, verdicts=verdicts, error=failure
        )
        return
    yield from _follow_arcs(pinned, state, activation, taken_arcs, verdicts, moment)


def _choose_arcs(
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
    went_well = _has_succeeded(activation)
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
            seen = expressions.list_seen_values(
                pinned, state, activation, plan.site[WHEN], number, moment
            )
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


def _follow_arcs(
    pinned: PinnedPlaybook,
    state: Execution,
    activation: Activation,
    taken_arcs: list[int],
    verdicts: tuple[e.Verdict, ...],
    moment: Moment,
) -> Decision:
    """Evaluate `set` and `args` of the taken arcs. Two arcs to one step become one choice."""
    plan = pinned.plan.steps[activation.step]
    assigned_values: dict[str, Any] = {}
    chosen: dict[str, e.Chosen] = {}
    for number in taken_arcs:
        values = _evaluate_arc(pinned, state, activation, number, moment)
        if isinstance(values, NeedsWorker):
            site = name_arc_site(number)
            yield from ask_for_evaluation(pinned, state, activation, "evaluate", site, moment)
            return
        if isinstance(values, Failure):
            yield _make_next_evaluated(
                activation, moment, order=plan.order, verdicts=verdicts, error=values
            )
            return
        assigned_values |= _select_values(values, "set:")
        target = _get_arc(plan.step, number).step
        args = _select_values(values, "args:")
        chosen[target] = _merge_choices(
            chosen.get(target), e.Chosen(arc=number, step=target, args=args)
        )
    refusal = playbook_state.find_write_refusal(state, assigned_values)
    if refusal is not None:
        yield _make_next_evaluated(
            activation, moment, order=plan.order, verdicts=verdicts, error=refusal
        )
        return
    error = _make_no_next(pinned, activation) if not chosen else None
    recovered = bool(chosen) and not _has_succeeded(activation)
    yield _make_next_evaluated(
        activation,
        moment,
        order=plan.order,
        verdicts=verdicts,
        chosen=tuple(chosen.values()),
        set=assigned_values,
        error=error,
        recovered=recovered,
    )


def _evaluate_arc(
    pinned: PinnedPlaybook, state: Execution, activation: Activation, number: int, moment: Moment
) -> dict[str, Any] | Failure | NeedsWorker:
    """The values of `set` and `args` of one arc, by key."""
    site = pinned.plan.steps[activation.step].site.get(name_arc_site(number))
    if site is None:
        return {}
    answer = expressions.evaluate_on_server(pinned, state, activation, site, moment)
    if isinstance(answer, NeedsWorker):
        return answer
    return _map_answer_to_keys(site.keys, answer)


def _select_values(values: dict[str, Any], prefix: str) -> dict[str, Any]:
    """The values with keys that begin with the prefix, by the rest of the key."""
    return {
        key.removeprefix(prefix): value for key, value in values.items() if key.startswith(prefix)
    }


def _merge_choices(earlier: e.Chosen | None, later: e.Chosen) -> e.Chosen:
    """One choice of two arcs to the same step: the first arc, with the arguments of both."""
    if earlier is None:
        return later
    args = {**earlier.args, **later.args}
    return e.Chosen(arc=earlier.arc, step=earlier.step, args=args)


def _has_succeeded(activation: Activation) -> bool:
    return activation.outcome is None or activation.outcome.ok


def _get_arc(step: Step, number: int) -> Arc:
    assert step.next is not None, "an arc was taken"
    return step.next.arcs[number]


def _make_no_next(pinned: PinnedPlaybook, activation: Activation) -> Failure | None:
    if not (_has_succeeded(activation) and pinned.plan.playbook.executor.spec.no_next_is_error):
        return None
    return Failure(
        code="NO_NEXT",
        kind="router",
        message=f"no arc of step {activation.step} matched (no_next_is_error)",
    )


def _make_next_evaluated(
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
            joined_failure = step_error.join_later_failure(error)
    return e.NextEvaluated(
        at=moment.at,
        step=activation.step,
        activation=activation.id,
        event=activation.event,
        error=error,
        failure=joined_failure,
        **fields,
    )
