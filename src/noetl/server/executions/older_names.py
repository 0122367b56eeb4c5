"""The names that events have in the older documents."""

from difflib import get_close_matches
from typing import Any, get_args

from noetl.model.errors import InvalidInput
from noetl.model.events import CommandCompleted, CommandFailed, CommandIssued, Event
from noetl.model.ids import Micros

TOOL_STARTED_NAMES = frozenset({"tool.started", "action_started"})
ITERATION_EVENT_NAMES = frozenset(
    {"loop.item", "loop.iteration.started", "loop.iteration.finished"}
)


def list_older_names(fact: Event) -> tuple[str, ...]:
    """The names of this event in the older documents; its type if they have none for it.

    An event with the start time of its tool also stands for that start, because `command.started`
    is recorded only for slow tools.
    """
    names = fact.older or (fact.type,)
    if not _is_of_loop(fact):
        names = tuple(name for name in names if name not in ITERATION_EVENT_NAMES)
    if not get_tool_start(fact):
        names = tuple(name for name in names if name not in TOOL_STARTED_NAMES)
    return names


def _is_of_loop(fact: Event) -> bool:
    if isinstance(fact, CommandIssued):
        return fact.kind in ("chunk", "frame")
    return isinstance(fact, CommandCompleted | CommandFailed) and fact.items is not None


def get_tool_start(fact: Event) -> Micros:
    """When the tool of the command started; 0 if the event does not tell."""
    return fact.started_at if isinstance(fact, CommandCompleted | CommandFailed) else 0


def check_event_types(named: frozenset[str], older: bool) -> None:
    """Refuse a name that no event has, instead of finding nothing."""
    known: set[str] = set()
    kinds: tuple[Any, ...] = get_args(Event)
    for kind in kinds:
        if older and kind.older:
            known.update(kind.older)
        else:
            known.add(kind.__struct_config__.tag)
    for name in sorted(named - known):
        hint = f"types: {', '.join(sorted(known))}"
        close = get_close_matches(name, sorted(known), 1)
        if close:
            hint = f"did you mean {close[0]}? {hint}"
        raise InvalidInput(f"no event has the type {name!r}", hint=hint)
