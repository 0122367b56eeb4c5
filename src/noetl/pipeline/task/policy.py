"""Turns the outcome of a task into the verdict of its policy.

Delays are computed here, and waited for by the caller.
"""

from typing import Any

from msgspec import Struct

from noetl.backoff import compute_delay, spread_delay
from noetl.model.errors import Failure
from noetl.model.ids import Micros
from noetl.pipeline.failures import TaskFailed
from noetl.pipeline.scope.rendering import TaskRendering
from noetl.playbook import durations
from noetl.playbook.model import DEFAULT_ATTEMPTS, Action, Rule, Task

DEFAULT_DELAY_MICROS: Micros = 1_000_000
MAX_JUMPS = 10_000
RETRY_AFTER_STATUSES = (429, 503)
MAX_RETRY_AFTER_MICROS: Micros = 3_600_000_000  # for a rule without `max_delay`


class Continue(Struct, frozen=True):
    """Go on with the next task. `let_pass` is the failure that the rule lets pass."""

    let_pass: Failure | None = None


class Retry(Struct, frozen=True):
    """Try the task again after a delay."""

    delay: Micros


class Jump(Struct, frozen=True):
    """Go on with the task `to`. The pipeline may jump `max_jumps` times."""

    to: str
    max_jumps: int
    let_pass: Failure | None = None


class Break(Struct, frozen=True):
    """End the pipeline successfully."""

    let_pass: Failure | None = None


class Fail(Struct, frozen=True):
    """End the pipeline with this failure."""

    failure: Failure


Verdict = Continue | Retry | Jump | Break | Fail


async def find_action(rules: list[Rule], rendering: TaskRendering) -> Action | None:
    """The action of the first rule that matches.

    It decides alone, also if it is a retry and no try is left.
    """
    for rule in rules:
        if rule.when is None or await rendering.evaluate_guard(rule.when):
            return rule.then
    return None


async def reach_verdict(
    action: Action | None,
    failure: Failure | None,
    tries: int,
    rendering: TaskRendering,
    chance: float,
) -> Verdict:
    """The verdict on a try that has just ended; `tries` includes it.

    Without a rule, an error fails the task, and the pipeline goes on after a success.
    """
    if action is None:
        if failure is None:
            return Continue()
        return Fail(failure)
    if action.do != "retry":
        return await _end_task(action.do, action, failure, rendering)
    attempts = await _render_attempts(action, rendering)
    if tries >= attempts:
        exhausted = action.exhausted or "fail"
        return await _end_task(
            exhausted, action, failure or _exhausted_failure(attempts), rendering
        )
    own_delay = await render_delay(action, tries, rendering, chance)
    longest = await _render_duration(action.max_delay, rendering)
    if longest is None:
        longest = MAX_RETRY_AFTER_MICROS
    return Retry(max(own_delay, min(_delay_asked_by_server(failure), longest)))


async def _end_task(
    do: str,
    action: Action,
    failure: Failure | None,
    rendering: TaskRendering,
) -> Verdict:
    """The verdict that ends the task: the `do` of a rule, or the `exhausted` of a retry without a
    try left."""
    match do:
        case "continue":
            return Continue(failure)
        case "break":
            return Break(failure)
        case "jump":
            return Jump(action.to or "previous", action.max_jumps or MAX_JUMPS, failure)
        case _:
            return Fail(await _declared_failure(action, failure, rendering))


def _delay_asked_by_server(failure: Failure | None) -> Micros:
    """The delay that an overloaded server asked for with `Retry-After`."""
    if failure is None or failure.http_status not in RETRY_AFTER_STATUSES:
        return 0
    seconds = failure.detail.get("retry_after")
    if not isinstance(seconds, int | float):
        return 0
    return round(seconds * 1_000_000)


def _exhausted_failure(attempts: int) -> Failure:
    message = (
        f"the task succeeded, but its rule still asked for another try after {attempts} of them"
    )
    return Failure(code="RETRY_EXHAUSTED", kind="policy", message=message)


async def _declared_failure(
    action: Action,
    failure: Failure | None,
    rendering: TaskRendering,
) -> Failure:
    """The failure of a rule that says `fail`, with its message."""
    message = None
    if action.message is not None:
        message = str(await rendering.value(action.message))
    if failure is None:
        message = message or "the task's policy says that it failed"
        return Failure(code="POLICY_FAILED", kind="policy", message=message)
    if message is None:
        return failure
    return Failure(
        code=failure.code,
        kind=failure.kind,
        message=message,
        retryable=failure.retryable,
        http_status=failure.http_status,
        sqlstate=failure.sqlstate,
        detail={"cause": failure.message[:500]},
    )


async def _render_attempts(action: Action, rendering: TaskRendering) -> int:
    if action.attempts is None:
        return DEFAULT_ATTEMPTS
    return await render_number(action.attempts, "attempts", rendering)


async def render_number(template: Any, name: str, rendering: TaskRendering) -> int:
    value = await rendering.value(template)
    try:
        return int(value)
    except (TypeError, ValueError):
        message = f"{name} is {value!r}, not a number"
        raise TaskFailed(Failure(code="POLICY_INVALID", kind="config", message=message)) from None


async def render_delay(
    action: Any,
    tries: int,
    rendering: TaskRendering,
    chance: float = 0.0,
) -> Micros:
    """The delay before the next try, or the next page, after `tries` of them.

    `action` has the fields delay, backoff and max_delay.
    """
    backoff = action.backoff
    base = await _render_duration(action.delay, rendering)
    if base is None:
        base = 0 if backoff in (None, "none") else DEFAULT_DELAY_MICROS
    longest = await _render_duration(action.max_delay, rendering)
    multiplier = getattr(action, "multiplier", None)
    jitter = getattr(action, "jitter", None)
    return _compute_policy_delay(base, backoff, tries, multiplier, longest, jitter, chance)


def _compute_policy_delay(
    base: Micros,
    backoff: str | None,
    tries: int,
    multiplier: float | None,
    longest: Micros | None,
    jitter: bool | float | None,
    chance: float,
) -> Micros:
    if longest is None:
        longest = durations.MAX_DURATION_US
    delay: float = base
    if backoff == "linear":
        delay = base * tries
    elif backoff == "exponential":
        delay = compute_delay(base, longest, tries - 1, multiplier or 2.0)
    delay = min(delay, longest)
    share = float(jitter or 0.0)
    if jitter is True:
        share = 0.5
    return round(spread_delay(delay, share, chance))


async def _render_duration(template: Any, rendering: TaskRendering) -> Micros | None:
    if template is None:
        return None
    value = await rendering.value(template)
    try:
        return durations.parse_micros(value)
    except ValueError as error:
        raise TaskFailed(
            Failure(code="POLICY_INVALID", kind="config", message=str(error))
        ) from None


def has_retry_rule(task: Task) -> bool:
    return any(rule.then.do == "retry" for rule in task.spec.policy.rules)
