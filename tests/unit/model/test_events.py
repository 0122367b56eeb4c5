"""What holds for every type of event: it is in the union once, explains itself, and has a key of its own."""

import ast
import inspect
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from noetl.model import events
from noetl.model.events import Base, Ended, Event, Reported, Terminal

EVENTS: tuple[Any, ...] = get_args(Event)


def tag(event: Any) -> str:
    return str(event.__struct_config__.tag)


def fill_event(event: Any) -> Any:
    """An event with the same value in each field as any other event has in the field of that name."""
    return event(**{field.name: f"<{field.name}>" for field in msgspec.structs.fields(event)})


def test_every_event_of_the_module_is_in_the_union() -> None:
    defined = {
        value for _, value in inspect.getmembers(events, inspect.isclass) if issubclass(value, Base)
    } - {Base}
    assert defined == set(EVENTS)
    assert len(EVENTS) == len(set(EVENTS))


def test_wire_types_are_unique() -> None:
    assert len({tag(event) for event in EVENTS}) == len(EVENTS)


def test_no_older_name_is_the_current_name_of_another_event() -> None:
    current = {tag(event): event for event in EVENTS}
    assert all(current.get(name, event) is event for event in EVENTS for name in event.older)


@pytest.mark.parametrize("event", EVENTS, ids=tag)
def test_every_event_says_what_it_means(event: Any) -> None:
    assert event.__doc__, "the docstring is its entry in docs/events.md"
    assert event.emitter in ("server", "worker")


def called_names() -> Iterator[str]:
    """The names of everything that the package calls."""
    package = Path(events.__file__).parents[1]
    for file in package.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_bytes())):
            match node:
                case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
                    yield name


def test_every_event_is_made_somewhere() -> None:
    assert {event.__name__ for event in EVENTS} - set(called_names()) == set()


def exclusive(first: Any, second: Any) -> bool:
    """Whether only one of the two can happen: the ends of an execution, of a command, of a call."""
    families = [set(get_args(Terminal)), set(get_args(Ended)), {events.CallDone, events.CallError}]
    return any({first, second} <= family for family in families)


# The names that the execution model (section 4.3) and the execution internals ("Core Event Types") print.
OLDER_NAMES = (
    "playbook.execution.requested", "playbook.request.evaluated", "workflow.started", "workflow.finished",
    "playbook.paused", "playbook.processed",
    "step.started", "step.finished", "tool.started", "tool.finished",
    "loop.started", "loop.iteration.started", "loop.iteration.finished", "loop.finished",
    "case.started", "case.evaluated", "next.evaluated",
    "retry.started", "retry.processed", "sink.started", "sink.processed",
    "execution_start", "action_started", "action_completed", "action_error", "execution_completed",
    "loop_started", "loop_completed", "result",
)  # fmt: skip


@pytest.mark.parametrize("name", OLDER_NAMES)
def test_an_older_name_stands_for_one_fact(name: str) -> None:
    named = [event for event in EVENTS if name in (event.older or (tag(event),))]
    assert named, "no event gives this name"
    assert all(exclusive(first, second) for first, second in combinations(named, 2)), [
        tag(each) for each in named
    ]


@pytest.mark.parametrize("event", EVENTS, ids=tag)
def test_an_event_has_an_older_name_once(event: Any) -> None:
    assert len(event.older) == len(set(event.older))


def test_two_types_share_a_key_only_when_they_exclude_each_other() -> None:
    for first, second in combinations(EVENTS, 2):
        assert (fill_event(first).key == fill_event(second).key) == exclusive(first, second), (
            tag(first),
            tag(second),
        )


NOT_IDENTIFYING = {"at", "result", "set", "worker", "error", "step"}


@pytest.mark.parametrize("event", EVENTS, ids=tag)
def test_a_key_never_depends_on_time_worker_or_result(event: Any) -> None:
    key = fill_event(event).key
    used = {field.name for field in msgspec.structs.fields(event) if f"<{field.name}>" in key}
    if event is events.StepInherited:
        used -= {"step"}  # nothing else names it
    assert not used & NOT_IDENTIFYING


@pytest.mark.parametrize("event", [events.TaskDone, events.CallPage, events.RetryStarted, events.CommandProgress,
                                   events.FrameClaimed, events.LoopShardDone], ids=tag)  # fmt: skip
def test_a_journal_entry_is_the_same_entry_in_a_later_attempt(event: Any) -> None:
    first = fill_event(event)
    assert msgspec.structs.replace(first, attempt=7).key == first.key


@pytest.mark.parametrize("event", get_args(Ended), ids=tag)
def test_a_command_ends_once_whatever_the_attempt(event: Any) -> None:
    first = fill_event(event)
    assert msgspec.structs.replace(first, attempt=7).key == first.key == "command:<command_id>:end"


def test_what_workers_report_is_emitted_by_workers() -> None:
    by_workers = {event for event in EVENTS if event.emitter == "worker"}
    assert by_workers | {events.CommandCancelled} == set(get_args(Reported))
