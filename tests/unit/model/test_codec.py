import json
from typing import Any

import pytest

from noetl.model import codec
from noetl.model.codec import UPCASTS, decode_command, decode_event, decode_message, encode
from noetl.model.commands import Command
from noetl.model.envelope import (
    MAX_CONTEXT_BYTES,
    SELECTIONS_KEY,
    Envelope,
    Selected,
    make_failed_envelope,
)
from noetl.model.errors import CorruptLog, Failure
from noetl.model.events import (
    CallDone,
    CommandCompleted,
    PlaybookInitialized,
    StepEnter,
    TimerFired,
)
from noetl.model.ids import ActivationId, CommandId, ExecutionId, RefId, TimerId
from noetl.model.messages import Cancel, Report
from noetl.model.reference import Reference

BIG = ExecutionId("9223372036854775807")


def test_ids_are_text_in_json() -> None:
    event = PlaybookInitialized(execution_id=BIG, path="a", playbook="hash")
    assert json.loads(encode(event))["execution_id"] == "9223372036854775807"


def test_the_type_is_in_the_json_and_defaults_are_not() -> None:
    assert json.loads(encode(TimerFired(timer=TimerId("t"), at=5))) == {
        "type": "timer.fired",
        "timer": "t",
        "at": 5,
    }


def test_an_event_reads_back() -> None:
    reference = Reference(
        ref_id=RefId("7"), type="kv", uri="noetl://execution/1/result/load/k", bytes=3, rows=1
    )
    event = CommandCompleted(
        command_id=CommandId("c"), attempt=1, result=Envelope(status="ok", reference=reference)
    )
    assert decode_event(encode(event)) == event


def test_a_message_reads_back() -> None:
    report = Report(execution_id=BIG, command_id=CommandId("c"), attempt=2, worker="w",
                    event=CommandCompleted(command_id=CommandId("c"), attempt=2, result=Envelope(status="ok")))  # fmt: skip
    assert decode_message(encode(report)) == report
    assert decode_message(encode(Cancel(request="r"))) == Cancel(request="r")


def test_a_command_reads_back() -> None:
    command = Command(
        command_id=CommandId("c"),
        execution_id=BIG,
        playbook="h",
        step="s",
        activation=ActivationId("a"),
    )
    assert decode_command(encode(command)) == command


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"1", b"{}", b'{"type":"no.such"}', b'{"type":"timer.fired"}',
                                  b'{"type":"timer.fired","timer":7}', b"\xff\xfe"])  # fmt: skip
def test_what_is_no_event_is_a_corrupt_log(data: bytes) -> None:
    with pytest.raises(CorruptLog):
        decode_event(data)


def test_an_older_shape_is_brought_up_to_date(monkeypatch: pytest.MonkeyPatch) -> None:
    def two(raw: dict[str, Any]) -> dict[str, Any]:
        return {"type": "step.begun", "name": raw["node"], "id": raw["id"]}

    def today(raw: dict[str, Any]) -> dict[str, Any]:
        return {
            "type": "step.enter",
            "step": raw["name"],
            "activation": raw["id"],
            "run": 1,
            "cause": "start",
        }

    monkeypatch.setitem(UPCASTS, "node.begun", two)
    monkeypatch.setitem(UPCASTS, "step.begun", today)
    expected = StepEnter(step="load", activation=ActivationId("a"), run=1, cause="start")
    assert decode_event(b'{"type":"node.begun","node":"load","id":"a"}') == expected
    assert decode_event(b'{"type":"step.begun","name":"load","id":"a"}') == expected
    assert decode_event(encode(expected)) == expected


def test_an_older_shape_of_a_type_that_kept_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        UPCASTS, "timer.fired", lambda raw: {"type": "timer.fired", "timer": raw["timer_id"]}
    )
    assert decode_event(b'{"type":"timer.fired","timer_id":"t"}') == TimerFired(timer=TimerId("t"))


def test_an_upcast_that_leads_nowhere_is_a_corrupt_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(UPCASTS, "old", lambda raw: {**raw, "type": "older"})
    monkeypatch.setitem(UPCASTS, "older", lambda raw: {**raw, "type": "old"})
    with pytest.raises(CorruptLog, match="after upcast"):
        decode_event(b'{"type":"old"}')


def test_todays_events_need_no_upcast() -> None:
    raw = {"type": "timer.fired", "timer": "t"}
    assert codec.upcast(raw) is raw


def test_a_bare_envelope_keeps_what_identifies_the_result() -> None:
    reference = Reference(ref_id=RefId("7"), type="kv", uri="noetl://execution/1/result/load/k")
    full = Envelope(status="ok", reference=reference, context={"row_count": 3})
    bare = CallDone(step="s", activation=ActivationId("a"), result=full.without_context()).result
    assert bare.reference == reference
    assert bare.context == {}


def test_selections_are_found_by_their_expression() -> None:
    full = Envelope(
        status="ok",
        context={SELECTIONS_KEY: {"load.rows | length": {"value": 3}, "x": {"missing": "load.x"}}},
    )
    again = decode_event(encode(CallDone(step="s", activation=ActivationId("a"), result=full)))
    assert isinstance(again, CallDone)
    assert again.result.find_selection("load.rows | length") == Selected(value=3)
    assert again.result.find_selection("x") == Selected(missing="load.x")
    assert again.result.find_selection("y") is None


def test_a_failure_makes_an_error_envelope() -> None:
    made = make_failed_envelope(Failure(code="X", message="no"), http_status=500)
    assert not made.ok
    assert made.context == {"http_status": 500}
    assert MAX_CONTEXT_BYTES == 8 * 1024
