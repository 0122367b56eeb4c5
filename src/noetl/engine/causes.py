"""Why a step ran, did not run, or waits: causes with their values, and a sentence for each of them.

`seq` is the event of a cause, if it is known; `line` is where the playbook's text says it.
"""

from typing import Any, Literal

from msgspec import Struct

from noetl.model.approvals import describe_question
from noetl.model.clock import format_iso
from noetl.model.ids import ExecutionId, Micros

# `resume`: the execution is paused.
WaitReason = Literal["signal", "approval", "child", "timer", "retry", "worker", "place", "resume"]


class Cause(Struct, frozen=True, kw_only=True, tag_field="kind"):
    """The base of all causes."""


class ReachedCause(Cause, frozen=True, tag="reached", rename={"origins": "from"}):
    """Arcs of these steps led here. Without one, the execution began here."""

    origins: list[str]
    seq: int | None = None
    args: dict[str, Any] = {}


class ArcCause(Cause, frozen=True, tag="arc", rename={"source": "from"}):
    """The verdict of a router on an arc. `source` is set if the arc is one of another step."""

    to: str
    verdict: str
    saw: dict[str, Any] = {}
    when: str | None = None
    line: int | None = None
    error: str | None = None
    seq: int | None = None
    source: str | None = None


class ItemKind(Struct, frozen=True):
    shape: str
    code: str
    count: int
    item: int | None
    seq: int


class ItemsCause(Cause, frozen=True, tag="items"):
    """Items of its loop have failed, or its loop runs. `next`: the first item that was not issued."""

    failed: int
    total: int | None
    ok: int = 0
    next: int | None = None
    commands: int | None = None
    kinds: list[ItemKind] = []


class WaitsCause(Cause, frozen=True, tag="waits"):
    """What it waits for."""

    on: WaitReason
    name: str | None = None
    since: str | None = None
    until: str | None = None
    child: str | None = None
    child_status: str | None = None
    pool: str | None = None
    workers: int | None = None
    task: str | None = None
    limit: int | None = None  # of places
    question: dict[str, Any] = {}  # of an approval: what is asked
    by: str | None = None  # of an approval: who has started the execution


class WorksCause(Cause, frozen=True, tag="works"):
    """A worker works on it, or may."""

    what: Literal["command", "evaluation"]


class HeldCause(Cause, frozen=True, tag="held", rename={"origins": "from"}):
    """It was reached, and live steps can still reach it."""

    origins: list[str]
    by: list[str]


class AdmitCause(Cause, frozen=True, tag="admit"):
    rule: int | None
    line: int | None = None


class InheritedCause(Cause, frozen=True, tag="inherited", rename={"source": "from"}):
    source: str | None


class FailedCause(Cause, frozen=True, tag="failed"):
    code: str
    message: str
    task: str | None = None
    seq: int | None = None
    line: int | None = None


class RecoveredCause(Cause, frozen=True, tag="recovered"):
    by: str
    code: str
    message: str
    task: str | None = None
    count: int = 1


class EndedCause(Cause, frozen=True, tag="ended"):
    how: str


class NotReachedCause(Cause, frozen=True, tag="not_reached", rename={"origins": "from"}):
    origins: list[str]
    reason: str


AnyCause = (
    ReachedCause
    | ArcCause
    | ItemsCause
    | WaitsCause
    | WorksCause
    | HeldCause
    | AdmitCause
    | InheritedCause
    | FailedCause
    | RecoveredCause
    | EndedCause
    | NotReachedCause
)


def describe_cause(execution_id: ExecutionId, step: str, cause: AnyCause) -> str:
    """The cause as a sentence. It names the command that ends a wait, if a person can."""
    match cause:
        case ReachedCause():
            if not cause.origins:
                return "the execution began here"
            return f"it was reached from {', '.join(cause.origins)}"
        case ArcCause():
            return _describe_arc(cause)
        case ItemsCause():
            return _describe_items(cause)
        case WaitsCause():
            return _describe_wait(execution_id, step, cause)
        case WorksCause(what="evaluation"):
            return "a worker evaluates an expression that needs data"
        case WorksCause():
            return "its command has not ended"
        case HeldCause():
            sources, blockers = ", ".join(cause.origins), ", ".join(cause.by)
            return (
                f"it was reached from {sources}, and what is live at {blockers} can still reach it"
            )
        case AdmitCause():
            return f"its admit rule {cause.rule} did not allow it"
        case InheritedCause():
            return "its result was taken over from the execution that is retried"
        case FailedCause():
            return cause.message
        case RecoveredCause():
            return _describe_recovery(cause)
        case EndedCause():
            return cause.how
        case NotReachedCause():
            return cause.reason


def _describe_arc(cause: ArcCause) -> str:
    text = f"arc to {cause.to}: {cause.verdict}"
    saw = ", ".join(f"{name} = {value!r}" for name, value in cause.saw.items())
    if saw:
        text += f" ({saw})"
    if cause.source is None:
        return text
    text = f"from {cause.source}, {text}"
    if cause.verdict == "false" and cause.when is not None:
        text += f"; its guard is {cause.when}"
    return text


def _describe_items(cause: ItemsCause) -> str:
    if cause.next is None:
        return f"{cause.failed} of its {cause.total} items failed"
    counts = f"{cause.ok} ok, {cause.failed} failed, {cause.commands} commands in flight"
    return f"its loop is at item {cause.next} of {cause.total}: {counts}"


def _describe_wait(execution_id: ExecutionId, step: str, cause: WaitsCause) -> str:
    match cause.on:
        case "approval":
            remedy = f"`noetl exec approve {execution_id} {step}` gives it, `reject` refuses it"
            return f"task {cause.task} waits for {_describe_approval(cause)}: {remedy}"
        case "signal":
            remedy = f"`noetl signal {execution_id} {cause.name}` sends it"
            return f"task {cause.task} waits for the signal {cause.name!r}: {remedy}"
        case "child" if cause.child_status is not None:
            return f"child {cause.child} ({cause.name}) is {cause.child_status}"
        case "child":
            return f"task {cause.task} waits for its child {cause.child or 'which has not started yet'}"
        case "worker":
            reason = "no worker has taken it yet"
            if not cause.workers:
                reason = (
                    f"no worker has that pool; `noetl worker start --pool {cause.pool}` starts one"
                )
            return f"its command waits in pool {cause.pool!r}: {reason}"
        case "place":
            return (
                f"the execution waits for a place: max_concurrent of {cause.name} is {cause.limit}"
            )
        case "resume":
            return "the execution is paused"
        case "timer" | "retry":
            reason = f"task {cause.task} waits for a timer"
            return reason if cause.until is None else f"{reason}, until {cause.until}"


def _describe_approval(cause: WaitsCause) -> str:
    text = "an approval"
    if cause.question:
        text += f" ({describe_question(cause.question)})"
    if cause.by is not None:
        text += f" that {cause.by} asks for"
    return text


def _describe_recovery(cause: RecoveredCause) -> str:
    text = f"recovered from {cause.code}"
    if cause.task is not None:
        text += f" of task {cause.task}"
    if cause.count > 1:
        text += f", {cause.count} times"
    return f"{text}: {cause.message} (handled by {cause.by})"


def format_moment(at: Micros | None) -> str | None:
    return None if at is None else format_iso(at)
