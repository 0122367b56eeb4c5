"""What a task's policy makes of its outcome. The verdicts are data; delays are computed, never waited for, here."""

from dataclasses import dataclass
from typing import Any

from noetl.model.errors import Failure
from noetl.model.ids import Micros
from noetl.pipeline.failures import Failing
from noetl.pipeline.rendering import TaskRendering
from noetl.playbook import durations
from noetl.playbook.model import DEFAULT_ATTEMPTS, Action, Rule, Task

DEFAULT_DELAY: Micros = 1_000_000
MAX_JUMPS = 10_000
RETRY_AFTER_STATUSES = (429, 503)
MAX_RETRY_AFTER: Micros = (
    3_600_000_000  # of what a server asks for, unless the rule has `max_delay`
)


@dataclass(frozen=True, slots=True)
class Go:
    """On at the next task. `let_pass` is the failure that the rule lets pass."""

    let_pass: Failure | None = None


@dataclass(frozen=True, slots=True)
class Again:
    delay: Micros


@dataclass(frozen=True, slots=True)
class Jump:
    to: str
    most: int
    let_pass: Failure | None = None


@dataclass(frozen=True, slots=True)
class Break:
    """The pipeline ends well."""

    let_pass: Failure | None = None


@dataclass(frozen=True, slots=True)
class Fail:
    failure: Failure


Verdict = Go | Again | Jump | Break | Fail


async def matching(rules: list[Rule], rendering: TaskRendering) -> Action | None:
    """The action of the first rule whose `when` holds. It decides alone, also when it is a retry without a try left."""
    for rule in rules:
        if rule.when is None or await rendering.guard(rule.when):
            return rule.then
    return None


async def verdict(
    action: Action | None,
    failure: Failure | None,
    tries: int,
    rendering: TaskRendering,
    chance: float,
) -> Verdict:
    """`tries` counts the one just ended. Without a rule an error fails the task, and after success the pipeline goes on."""
    if action is None:
        return Go() if failure is None else Fail(failure)
    if action.do != "retry":
        return await _done(action.do, action, failure, rendering)
    attempts = await _attempts(action, rendering)
    if tries < attempts:
        own = await delay(action, tries, rendering, chance)
        longest = await _duration(action.max_delay, rendering)
        asked = min(_asked_delay(failure), MAX_RETRY_AFTER if longest is None else longest)
        return Again(max(own, asked))
    return await _done(action.exhausted or "fail", action, failure or _used_up(attempts), rendering)


async def _done(
    do: str, action: Action, failure: Failure | None, rendering: TaskRendering
) -> Verdict:
    """What ends the task: the `do` of a rule, or the `exhausted` of a retry that has no try left."""
    match do:
        case "continue":
            return Go(failure)
        case "break":
            return Break(failure)
        case "jump":
            return Jump(action.to or "previous", action.max_jumps or MAX_JUMPS, failure)
        case _:
            return Fail(await _declared(action, failure, rendering))


def _asked_delay(failure: Failure | None) -> Micros:
    """What the server asked for with `Retry-After`, when it has too much to do."""
    if failure is None or failure.http_status not in RETRY_AFTER_STATUSES:
        return 0
    seconds = failure.detail.get("retry_after")
    return round(seconds * 1_000_000) if isinstance(seconds, int | float) else 0


def _used_up(attempts: int) -> Failure:
    message = (
        f"the task succeeded, but its rule still asked for another try after {attempts} of them"
    )
    return Failure(code="RETRY_EXHAUSTED", kind="policy", message=message)


async def _declared(action: Action, failure: Failure | None, rendering: TaskRendering) -> Failure:
    message = str(await rendering.value(action.message)) if action.message is not None else None
    if failure is None:
        return Failure(
            code="POLICY_FAILED",
            kind="policy",
            message=message or "the task's policy says that it failed",
        )
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


async def _attempts(action: Action, rendering: TaskRendering) -> int:
    if action.attempts is None:
        return DEFAULT_ATTEMPTS
    return await number(action.attempts, "attempts", rendering)


async def number(template: Any, name: str, rendering: TaskRendering) -> int:
    value = await rendering.value(template)
    try:
        return int(value)
    except (TypeError, ValueError):
        raise Failing(
            Failure(
                code="POLICY_INVALID", kind="config", message=f"{name} is {value!r}, not a number"
            )
        ) from None


async def delay(action: Any, tries: int, rendering: TaskRendering, chance: float = 0.0) -> Micros:
    """Before the next try, after `tries` of them. Also for pages: `action` has delay, backoff, max_delay."""
    backoff = action.backoff
    base = await _duration(action.delay, rendering)
    if base is None:
        base = 0 if backoff in (None, "none") else DEFAULT_DELAY
    longest = await _duration(action.max_delay, rendering)
    return _delay(
        base,
        backoff,
        tries,
        getattr(action, "multiplier", None),
        longest,
        getattr(action, "jitter", None),
        chance,
    )


def _delay(
    base: Micros,
    backoff: str | None,
    tries: int,
    multiplier: float | None,
    longest: Micros | None,
    jitter: bool | float | None,
    chance: float,
) -> Micros:
    grown: float = base
    if backoff == "linear":
        grown = base * tries
    elif backoff == "exponential":
        grown = base * min((multiplier or 2.0) ** min(tries - 1, 64), 1e9)
    grown = min(grown, durations.LONGEST if longest is None else longest)
    share = 0.5 if jitter is True else float(jitter or 0.0)
    return round(grown * (1 - share) + grown * share * chance)


async def _duration(template: Any, rendering: TaskRendering) -> Micros | None:
    if template is None:
        return None
    value = await rendering.value(template)
    try:
        return durations.micros(value)
    except ValueError as error:
        raise Failing(Failure(code="POLICY_INVALID", kind="config", message=str(error))) from None


def retries(task: Task) -> bool:
    return any(rule.then.do == "retry" for rule in task.spec.policy.rules)
