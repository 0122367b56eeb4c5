"""What a task's policy makes of its outcome. The verdicts are data; delays are computed, never waited for, here."""

from dataclasses import dataclass
from typing import Any

from noetl.model.errors import Failure
from noetl.model.ids import Micros
from noetl.pipeline.failures import Failing
from noetl.pipeline.rendering import Rendering
from noetl.playbook import durations
from noetl.playbook.model import Action, Rule, Task

DEFAULT_ATTEMPTS = 3
DEFAULT_DELAY: Micros = 1_000_000
MAX_JUMPS = 10_000


@dataclass(frozen=True, slots=True)
class Go:
    """On at the next task."""


@dataclass(frozen=True, slots=True)
class Again:
    delay: Micros


@dataclass(frozen=True, slots=True)
class Jump:
    to: str
    most: int


@dataclass(frozen=True, slots=True)
class Break:
    """The pipeline ends well."""


@dataclass(frozen=True, slots=True)
class Fail:
    failure: Failure


Verdict = Go | Again | Jump | Break | Fail


async def matching(rules: list[Rule], rendering: Rendering, tries: int = 0) -> Action | None:
    """The first rule that matches; a retry without a try left gives way to the rules after it."""
    for rule in rules:
        if rule.when is None or await rendering.guard(rule.when):
            used_up = rule.then.do == "retry" and tries >= await _attempts(rule.then, rendering)
            if not used_up:
                return rule.then
    return None


async def verdict(
    action: Action | None, failure: Failure | None, tries: int, rendering: Rendering, chance: float
) -> Verdict:
    """`tries` counts the one just ended. Without a rule, or with no try left: an error fails, success goes on."""
    otherwise: Verdict = Go() if failure is None else Fail(failure)
    match action.do if action is not None else None:
        case "continue":
            return Go()
        case "break":
            return Break()
        case "jump":
            assert action is not None
            return Jump(action.to or "previous", action.max_jumps or MAX_JUMPS)
        case "fail":
            assert action is not None
            return Fail(await _declared(action, failure, rendering))
        case "retry":
            assert action is not None
            if tries >= await _attempts(action, rendering):
                return otherwise
            return Again(await delay(action, tries, rendering, chance))
        case _:
            return otherwise


async def _declared(action: Action, failure: Failure | None, rendering: Rendering) -> Failure:
    message = str(await rendering.value(action.message)) if action.message is not None else None
    if failure is None:
        return Failure(code="POLICY_FAILED", kind="policy", message=message or "the task's policy says that it failed")
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


async def _attempts(action: Action, rendering: Rendering) -> int:
    if action.attempts is None:
        return DEFAULT_ATTEMPTS
    return await number(action.attempts, "attempts", rendering)


async def number(template: Any, name: str, rendering: Rendering) -> int:
    value = await rendering.value(template)
    try:
        return int(value)
    except (TypeError, ValueError):
        raise Failing(
            Failure(code="POLICY_INVALID", kind="config", message=f"{name} is {value!r}, not a number")
        ) from None


async def delay(action: Any, tries: int, rendering: Rendering, chance: float = 0.0) -> Micros:
    """Before the next try, after `tries` of them. Also for pages: `action` has delay, backoff, max_delay."""
    backoff = action.backoff
    base = await _duration(action.delay, rendering)
    if base is None:
        base = 0 if backoff in (None, "none") else DEFAULT_DELAY
    longest = await _duration(action.max_delay, rendering)
    return _delay(
        base, backoff, tries, getattr(action, "multiplier", None), longest, getattr(action, "jitter", None), chance
    )


def _delay(
    base: Micros, backoff: str | None, tries: int, multiplier: float | None, longest: Micros | None,
    jitter: bool | float | None, chance: float,
) -> Micros:  # fmt: skip
    grown: float = base
    if backoff == "linear":
        grown = base * tries
    elif backoff == "exponential":
        grown = base * min((multiplier or 2.0) ** min(tries - 1, 64), 1e9)
    grown = min(grown, durations.LONGEST if longest is None else longest)
    share = 0.5 if jitter is True else float(jitter or 0.0)
    return round(grown * (1 - share) + grown * share * chance)


async def _duration(template: Any, rendering: Rendering) -> Micros | None:
    if template is None:
        return None
    value = await rendering.value(template)
    try:
        return durations.micros(value)
    except ValueError as error:
        raise Failing(Failure(code="POLICY_INVALID", kind="config", message=str(error))) from None


def retries(task: Task) -> bool:
    return any(rule.then.do == "retry" for rule in task.spec.policy.rules)
