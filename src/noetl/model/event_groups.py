"""Groups of rare events, by which people filter a log: failures, retries, waits, loops, life.

The log stores with each append which groups are among its events, so rare events are found without
reading the rest. The start and the end of an execution need no such entry: they are the first and the
last of its events. So an execution without troubles, waits and loops has none.
"""

from collections.abc import Callable
from typing import Any, Literal, get_args

from noetl.model import events as e

EventGroup = Literal["failures", "retries", "waits", "loops", "life"]
# Bits of `groups` in the log. The migration `snapshots` sets all of them for older rows.
GROUP_BITS: dict[str, int] = {"failures": 1, "retries": 2, "waits": 4, "loops": 8, "life": 16}
_FAILURES = GROUP_BITS["failures"]
_RETRIES = GROUP_BITS["retries"]
_WAITS = GROUP_BITS["waits"]
_LOOPS = GROUP_BITS["loops"]
_LIFE = GROUP_BITS["life"]
ALL_GROUPS = sum(GROUP_BITS.values())

# Events at the start and at the end of an execution: they belong to groups, but are not stored as such.
UNMARKED_EVENTS = (
    e.PlaybookInitialized
    | e.WorkflowInitialized
    | e.StepInherited
    | e.ArrivalsInherited
    | e.CtxInherited
    | e.StateRead
    | e.PlaybookCompleted
    | e.PlaybookFailed
    | e.ExecutionCancelled
)

_GROUPS: dict[type, int] = {
    e.PlaybookInitialized: _LIFE,
    e.WorkflowInitialized: _LIFE,
    e.StepInherited: _LIFE,
    e.ArrivalsInherited: _LIFE,
    e.CtxInherited: _LIFE,
    e.StateRead: _LIFE,
    e.StateConflict: _LIFE | _FAILURES,
    e.PlaybookPaused: _LIFE | _WAITS,
    e.PlaybookResumed: _LIFE | _WAITS,
    e.ExecutionCancelling: _LIFE,
    e.ExecutionCancelled: _LIFE,
    e.PlaybookCompleted: _LIFE,
    e.PlaybookFailed: _LIFE | _FAILURES,
    e.ExecutionQuarantined: _LIFE | _FAILURES,
    e.ExecutionReleased: _LIFE,
    e.CallError: _FAILURES,
    e.CommandFailed: _FAILURES,
    e.CommandDead: _FAILURES,
    e.RetryStarted: _RETRIES,
    e.CommandReturned: _RETRIES,
    e.CommandReclaimed: _RETRIES,
    e.TimerFired: _WAITS,
    e.SignalReceived: _WAITS,
    e.ChildStarted: _WAITS,
    e.LoopStarted: _LOOPS,
    e.LoopShardDone: _LOOPS,
    e.LoopFaninCompleted: _LOOPS,
}

_STORED_GROUPS = {
    event: groups for event, groups in _GROUPS.items() if event not in get_args(UNMARKED_EVENTS)
}


def _find_item_groups(event: e.CommandCompleted | e.CommandProgress) -> int:
    if event.items is not None and event.items.failed:
        return _FAILURES
    return 0


def _find_result_groups(event: e.StepExit) -> int:
    return 0 if event.result.ok else _FAILURES


def _find_error_groups(event: e.NextEvaluated | e.ExpressionEvaluated) -> int:
    return 0 if event.error is None else _FAILURES


def _find_loop_groups(event: e.LoopDone) -> int:
    return _LOOPS if event.result.ok else _LOOPS | _FAILURES


def _find_child_groups(event: e.ChildEnded) -> int:
    return _WAITS if event.result.ok else _WAITS | _FAILURES


def _find_parked_groups(event: e.CommandParked) -> int:
    return _RETRIES if event.reason == "retry" else _WAITS


def _find_issued_groups(event: e.CommandIssued) -> int:
    return _RETRIES if event.attempts else 0


_GROUP_RULES: dict[type, Callable[[Any], int]] = {
    e.CommandCompleted: _find_item_groups,
    e.CommandProgress: _find_item_groups,
    e.StepExit: _find_result_groups,
    e.NextEvaluated: _find_error_groups,
    e.ExpressionEvaluated: _find_error_groups,
    e.LoopDone: _find_loop_groups,
    e.ChildEnded: _find_child_groups,
    e.CommandParked: _find_parked_groups,
    e.CommandIssued: _find_issued_groups,
}


def find_groups(event: e.Event) -> int:
    """The groups of an event, as bits."""
    event_type = type(event)
    rule = _GROUP_RULES.get(event_type)
    if rule is not None:
        return rule(event)
    return _GROUPS.get(event_type, 0)


def find_stored_groups(event: e.Event) -> int:
    """The groups of an event that its row in the log has."""
    event_type = type(event)
    rule = _GROUP_RULES.get(event_type)
    if rule is not None:
        return rule(event)
    return _STORED_GROUPS.get(event_type, 0)
