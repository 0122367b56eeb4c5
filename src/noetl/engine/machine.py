"""The machine: `advance` folds an event, decides, folds the decided events, and repeats until no
event is left.

When its queue is empty, `settle` looks at the whole state (joins, the end of the execution). So
`settle` never decides from a state that lacks a decided event.
"""

from collections import deque

from msgspec import Struct

from noetl.engine import lifecycle, playbook_state
from noetl.engine.expressions import Moment
from noetl.engine.fold import evolve
from noetl.engine.issuing import Decision
from noetl.engine.rules import decide
from noetl.engine.state import Execution, PinnedPlaybook
from noetl.model import events as e
from noetl.model.decisions import (
    Effect,
)
from noetl.model.errors import Failure
from noetl.model.ids import Micros

# Events that one message may lead to; more mean a cycle of steps without a wait.
MAX_EVENTS_PER_MESSAGE = 30_000


class Advance(Struct, frozen=True):
    state: Execution
    events: tuple[e.Event, ...]
    effects: tuple[Effect, ...]


def advance(pinned: PinnedPlaybook, state: Execution, *initial_events: e.Event) -> Advance:
    """Fold and decide until nothing follows. Events are listed in the order of folding, which is
    the order of the log."""
    queue: deque[e.Event] = deque(initial_events)
    events: list[e.Event] = []
    effects: list[Effect] = []

    def collect(decided: Decision) -> None:
        for entry in decided:
            if isinstance(entry, e.Base):
                queue.append(entry)
            else:
                effects.append(entry)

    while queue:
        event = queue.popleft()
        before, state = state, evolve(state, event)
        events.append(event)
        if state.playbook_state is not before.playbook_state:
            effects.extend(playbook_state.list_state_effects(before, state, event))
        if len(events) == MAX_EVENTS_PER_MESSAGE and state.status == "running":
            queue.append(_make_runaway(event))
        if len(events) > 2 * MAX_EVENTS_PER_MESSAGE:
            raise RuntimeError(
                f"{event.type} of {state.execution_id} led to more than {2 * MAX_EVENTS_PER_MESSAGE} events"
            )
        moment = Moment(event.key, event.at)
        collect(decide(pinned, state, event, moment))
        if not queue:
            collect(lifecycle.settle(pinned, state, moment))
    return Advance(state, tuple(events), tuple(effects))


def _make_runaway(event: e.Event) -> e.ExecutionCancelling:
    message = (
        f"{MAX_EVENTS_PER_MESSAGE} events followed from one, and no step had anything to wait for:"
        " a cycle without an end?"
    )
    runaway = Failure(code="RUNAWAY", kind="runaway", message=message)
    return e.ExecutionCancelling(
        at=event.at,
        reason="failed",
        error=runaway,
        step=getattr(event, "step", None),
    )


def make_quarantined(
    state: Execution, error: str, cause: str, at: Micros
) -> e.ExecutionQuarantined:
    return e.ExecutionQuarantined(at=max(at, state.last_at), error=error[:1000], cause=cause)
