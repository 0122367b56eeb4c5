"""What a live execution waits for, and how far its loop is."""

from typing import Any

from noetl.engine.live_summary import summarise_live
from noetl.engine.state import (
    Activation,
    Execution,
    LoopState,
    OpenCommand,
    ParkedCommand,
)
from noetl.engine.summary import summarise_broken, summarise_execution
from noetl.model.errors import Failure
from noetl.model.events import Collection
from noetl.model.ids import ActivationId, CommandId, ExecutionId
from noetl.model.live_summary import AwaitedThing, LiveSummary, LoopProgress


def make_state(*commands: OpenCommand, **fields: Any) -> Execution:
    activation = Activation(id=ActivationId("a"), step="ask", run=1, cause="", entered_at=7)
    return Execution(
        execution_id=ExecutionId("1"),
        **{
            "status": "running",
            "activations": {activation.id: activation},
            "commands": {command.id: command for command in commands},
            **fields,
        },
    )


def make_command(number: int, reason: str | None, **parked: Any) -> OpenCommand:
    waits = None if reason is None else ParkedCommand(reason=reason, task="t", **parked)
    return OpenCommand(
        id=CommandId(f"c{number}"),
        activation=ActivationId("a"),
        step="ask",
        kind="call",
        order=number,
        parked=waits,
    )


def test_a_person_is_named_before_children_and_timers() -> None:
    state = make_state(
        make_command(1, "time"),
        make_command(2, "child", child=ExecutionId("9")),
        make_command(3, "signal", signal="go"),
        make_command(4, None),
    )
    summary = summarise_live(state)
    assert summary == LiveSummary(AwaitedThing("signal", "ask", "go", 7))
    assert summary.waits_for_person


def test_an_execution_that_works_does_not_wait_for_its_child() -> None:
    waits = make_command(1, "child", child=ExecutionId("9"))
    assert summarise_live(make_state(waits, make_command(2, None))) is None
    summary = summarise_live(make_state(waits))
    assert summary == LiveSummary(AwaitedThing("child", "ask", "9", 7))
    assert not summary.waits_for_person


def test_the_loop_that_began_last_is_the_progress() -> None:
    def loop(step: str, order: int, **fields: Any) -> Activation:
        state = LoopState(
            collection=Collection(kind="inline", size=10),
            window=1,
            chunk=0,
            frame=0,
            max_failed=None,
            single=False,
            **{"mode": "parallel", **fields},
        )
        return Activation(
            id=ActivationId(step), step=step, run=1, cause="", order=order, loop=state
        )

    first, last = loop("first", 1), loop("last", 2, ok=3, failed=1, skipped=1)
    state = make_state(activations={entry.id: entry for entry in (last, first)})
    assert summarise_live(state) == LiveSummary(progress=LoopProgress("last", 5, 1, 10))
    cursor = loop("rows", 3, mode="cursor", claimed=50, ok=4)
    state = make_state(activations={cursor.id: cursor})
    assert summarise_live(state) == LiveSummary(progress=LoopProgress("rows", 4, 0, None))


def test_what_stands_still_waits_for_a_person() -> None:
    for fields, on in (
        ({"paused": True}, "paused"),
        ({"quarantined": "why"}, "quarantined"),
        ({"status": "pending", "started_at": 5}, "place"),
    ):
        columns = summarise_execution(make_state(**fields))
        assert columns["live"].waits_for.on == on
        assert columns["waiting"] is (on != "place")
    assert summarise_broken(make_state(), "why")["waiting"]


def test_an_ended_execution_waits_for_nothing() -> None:
    for status in ("completed", "failed", "cancelled"):
        state = make_state(make_command(1, "signal", signal="go"), status=status)
        columns = summarise_execution(state)
        assert (columns["live"], columns["waiting"]) == (None, False)


def test_the_error_of_a_row_can_be_stored() -> None:
    """Also that of a log with a NUL in its events."""
    failure = Failure(code="PYTHON_ERROR", message="a\0b")
    failed = summarise_execution(make_state(status="failed", failure=failure))
    assert failed["error"] == "PYTHON_ERROR: a\ufffdb"
    quarantined = summarise_execution(make_state(quarantined="c\0d"))
    assert quarantined["error"] == "c\ufffdd"
    assert summarise_broken(make_state(), "e\0f")["error"] == "e\ufffdf"
