"""What the event table holds: envelopes, never payloads; and every event comes back as it was decided."""

import json
from typing import Any, get_args

import pytest

from noetl.log.events.event_halves import join_event, split_event
from noetl.model.codec import encode
from noetl.model.envelope import Envelope, has_rows, remove_rows
from noetl.model.errors import Failure
from noetl.model.event_groups import ALL_GROUPS
from noetl.model.events import (
    CallDone,
    CommandCompleted,
    Event,
    PlaybookCompleted,
    SignalReceived,
    StepExit,
)
from noetl.model.ids import ActivationId, CommandId, ExecutionId
from noetl.model.reference import Reference
from noetl.postgres.pool import connect
from tests.integration.log.conftest import store

INSERT = """
insert into noetl.event_part (execution_id, last_seq, epoch, tenant, count, shard, ends, events)
values (7, 1, 1, 1, 2, 0, false, ('[["j",{}],["k",' || $2::text || coalesce(',' || $1::text, '') || ']]')::json)
"""
REFERENCE = {"ref_id": "1", "type": "kv", "uri": "noetl://execution/7/result/s/k"}


NESTED: list[Any] = [
    {"rows": [{"a": 1}]},
    {"rows": []},
    {"row": {"a": 1}},
    {"columns": [{"a": 1}]},
    {"columns": [["a"]]},
    {"columns": {"a": 1}},
    {"http": [1]},
    {"http": {"headers": [1]}},
    {"http": {"headers": {"a": [1]}}},
    {"results": {"task": [1]}},
    {"selections": [1]},
    {"selections": {"a": {"value": [1]}}},
    {"selections": {"b": {"value": 1}, "a": {"value": {"x": 1}}}},
    {"n": 1, "selections": {"a": {"value": {}}}},
    [1],
]
FLAT: list[dict[str, Any]] = [
    {},
    {"n": 1, "f": 1.5, "t": "\u0000 [{", "yes": True, "none": None},
    {"row_count": 2, "columns": ["a", "b"]},
    {"columns": None},
    {"http": {"status": 200, "headers": {"a": "b"}}, "spark": {"expect": {"positive": 3}}},
    {"stats": {"total": 1}, "results": {"a": REFERENCE, "b": None}},
    {"results": {"$reference": REFERENCE}},
    {
        "selections": {
            "a": {"value": 1},
            "b": {"missing": "x"},
            "c": {"stored": {**REFERENCE, "rows": 3}},
        }
    },
    {
        "selections": {
            "a": {},
            "b": {"error": "x"},
            "c": {"reference": "noetl://execution/7/result/s/k"},
        }
    },
]


@pytest.mark.parametrize("context", [*NESTED[:-1], *FLAT], ids=str)
async def test_the_server_and_the_database_agree_on_what_a_context_may_hold(
    migrated: str, context: dict[str, Any]
) -> None:
    connection = await connect(migrated)
    result = {"status": "ok", "context": context}
    taken = await connection.fetchval("select noetl.is_envelope($1::json)", json.dumps(result))
    await connection.close()
    assert taken is not any(has_rows(name, value) for name, value in context.items())
    kept = remove_rows(context)
    assert not any(has_rows(name, value) for name, value in kept.items())
    assert (kept == context) is (context in FLAT)


@pytest.mark.parametrize(
    "result",
    [
        {"status": "ok", "rows": [{"a": 1}]},
        {"status": "ok", "reference": REFERENCE, "data": {"a": 1}},
        {"status": "ok", "context": {"rows": "x" * 8_192}},
        {"status": "ok", "con\u0000text": {}},
        [1, 2, 3],
        *({"status": "ok", "context": context} for context in NESTED),
    ],
    ids=["rows", "data", "large context", "another key", "a list", *map(str, NESTED)],
)
async def test_a_payload_is_refused_by_the_database(migrated: str, result: Any) -> None:
    connection = await connect(migrated)
    with pytest.raises(Exception, match="event_holds_no_payload"):
        await connection.execute(INSERT, json.dumps(result), "{}")
    with pytest.raises(Exception, match="event_holds_no_payload"):
        await connection.execute(INSERT, None, json.dumps({"rows": "x" * 16_384}))
    assert await connection.fetchval("select count(*) from noetl.event") == 0
    await connection.close()


@pytest.mark.corrupts  # its rows are envelopes and nothing else
async def test_an_envelope_is_taken_with_whatever_its_scalars_hold(migrated: str) -> None:
    connection = await connect(migrated)
    envelope = {
        "status": "error",
        "reference": REFERENCE,
        "parent_ref": None,
        "context": {"a": "\u0000 \\u0000"},
    }
    await connection.execute(
        INSERT, json.dumps({**envelope, "error": {"code": "X"}, "meta": {}}), '{"a": "\\u0000"}'
    )
    row = await connection.fetchrow(
        "select context, metadata from noetl.event_log where context is not null"
    )
    assert row["metadata"] == '{"a": "\\u0000"}'
    await connection.close()


OK = Envelope(
    status="ok",
    reference=Reference(ref_id="1", type="kv", uri="noetl://execution/7/result/s/k"),  # type: ignore[arg-type]
    context={"z": 1, "http": {"b": None, "A": "é\u0000\\"}, "n": 1.0, "big": 2**60},
)
ACTIVATION = ActivationId("a")
EVENTS: list[Event] = [
    CommandCompleted(
        command_id=CommandId("c"), attempt=2, result=OK, set={"ctx.z": 1, "ctx.a": {"y": 1, "b": 2}}
    ),
    CallDone(step="s", activation=ACTIVATION, result=OK),
    PlaybookCompleted(),
    PlaybookCompleted(step="s", result=OK),
    SignalReceived(name="n", request="r", payload={"z": ["\u0000"], "a": 1}),
    # the same words as the envelope's, inside something else, before and after it
    StepExit(step="s", activation=ACTIVATION, result=OK, set={"ctx.x": {"y": 1, "result": OK}}),
    SignalReceived(name="n", request="q", payload={"y": 1, "result": {"status": "ok"}}),
    CommandCompleted(
        command_id=CommandId("d"),
        attempt=1,
        result=Envelope(status="ok"),
        set={"a": {"b": 1, "result": {"status": "ok"}}},
    ),
    CallDone(
        step="t",
        activation=ActivationId("b"),
        result=Envelope(status="error", error=Failure(code="X", message="'")),
    ),
]


@pytest.mark.parametrize("event", EVENTS)
def test_an_event_taken_apart_is_the_same_event(event: Event) -> None:
    meta, result = split_event(event, encode(event))
    assert encode(join_event(meta, result)) == encode(event)  # the order of keys as well


async def test_events_come_back_byte_for_byte(migrated: str) -> None:
    async with store(migrated) as here:
        await here.claim_shards()
        id_ = ExecutionId("7")
        await here.write(id_, *[each for each in EVENTS if each.key != "terminal"], EVENTS[3])
        read = [each.event for each in await here.stores.log.read_events(id_)]
        assert [encode(each) for each in read] == [
            encode(each)
            for each in (*[each for each in EVENTS if each.key != "terminal"], EVENTS[3])
        ]


# The names that the older documents give to events in `noetl.event_log`.
EVENT_LOG_NAMES = {
    "execution_start", "action_started", "action_completed", "action_error", "execution_completed", "loop_started",
    "loop_completed", "result",
}  # fmt: skip


async def test_the_view_and_the_api_agree_on_older_names(migrated: str) -> None:
    connection = await connect(migrated)
    names = "select noetl.event_log_names($1, $2::json)"
    for event in get_args(Event):
        current = event.__struct_config__.tag
        older = [name for name in event.older if name in EVENT_LOG_NAMES] or [current]
        assert (
            await connection.fetchval(names, current, '{"started_at": 1, "a": "\\u0000"}') == older
        )
        older = [name for name in older if name != "action_started"]
        assert await connection.fetchval(names, current, '{"a": "\\u0000"}') == older
    await connection.close()


async def test_rows_of_older_versions_may_hold_events_of_any_group(migrated: str) -> None:
    connection = await connect(migrated)
    transaction = connection.transaction()
    await transaction.start()
    await connection.execute(INSERT, None, "{}")
    groups = await connection.fetchval("select groups from noetl.event_part where execution_id = 7")
    await transaction.rollback()
    await connection.close()
    assert groups == ALL_GROUPS
