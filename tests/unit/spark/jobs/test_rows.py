"""Events as rows: cut by execution, decoded, laid out for others."""

from typing import Any

import pyarrow as pa

from noetl.spark.jobs.event_rows import (
    EVENT_SCHEMA,
    compute_checksum,
    decode_events,
    split_by_execution,
)
from noetl.spark.jobs.export import LAYOUT, convert_to_layout, split_by_day

DAY = 86_400_000_000


def event(**more: Any) -> dict[str, Any]:
    usual = {
        "shard": 3, "seq": 1, "epoch": 1, "tenant": 1, "execution_id": 7, "event_type": "workflow.initialized", "step": None,
        "command_id": None, "attempt": None, "status": None, "result": None, "meta": '{"type":"workflow.initialized","at":5}',
        "dedup_key": "admitted", "at": 5,
    }  # fmt: skip
    return {**usual, **more}


def batch(*rows: dict[str, Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(rows), EVENT_SCHEMA)


def test_executions_are_cut_out_of_batches_wherever_these_end() -> None:
    batches = [
        batch(*(event(execution_id=each, seq=number) for number, each in enumerate(ids)))
        for ids in ([1, 1, 2], [2, 2], [], [2, 3], [4, 5, 5])
    ]
    cut = [
        (table.column("execution_id")[0].as_py(), table.num_rows)
        for table in split_by_execution(batches)
    ]
    assert cut == [(1, 2), (2, 4), (3, 1), (4, 1), (5, 2)]


def test_events_are_decoded_in_the_order_of_the_log() -> None:
    rows = pa.Table.from_batches(
        [batch(event(seq=2, meta='{"type":"workflow.initialized","at":9}'), event(seq=1))]
    )
    assert [each.at for each in decode_events(rows)] == [5, 9]


def test_a_checksum_is_of_every_column_and_not_of_the_order_of_rows() -> None:
    rows = [event(seq=1), event(seq=2, step="a")]
    whole = compute_checksum(pa.Table.from_batches([batch(*rows)]))
    assert compute_checksum(pa.Table.from_batches([batch(*reversed(rows))])) == whole
    other = {
        "step": "",
        "attempt": 0,
        "result": "",
        "at": 6,
        "status": "ok",
        "meta": "{}",
        "dedup_key": "x",
        "epoch": 2,
    }
    for name, value in other.items():
        assert (
            compute_checksum(pa.Table.from_batches([batch(rows[0], {**rows[1], name: value})]))
            != whole
        ), name


def test_the_layout_names_status_duration_and_error() -> None:
    failed = event(
        event_type="command.failed",
        seq=2,
        status="error",
        step="a",
        meta='{"type":"command.failed","started_at":1000,"at":3500}',
        result='{"status":"error","error":{"code":"X","message":"no"}}',
        at=3500,
    )
    ended = event(
        event_type="playbook.failed",
        seq=3,
        meta='{"type":"playbook.failed","error":{"message":"no"}}',
    )
    aside = event(
        event_type="execution.quarantined",
        seq=4,
        meta='{"type":"execution.quarantined","error":"bad"}',
    )
    rows = convert_to_layout(batch(event(), failed, ended, aside))
    assert rows.schema == LAYOUT
    found = [(row["Status"], row["Duration"], row["ErrorMessage"]) for row in rows.to_pylist()]
    assert found == [
        ("STARTED", None, None),
        ("FAILED", 2.5, "no"),
        ("FAILED", None, "no"),
        ("FAILED", None, "bad"),
    ]
    assert rows.column("EventId").to_pylist() == [1027, 2051, 3075, 4099]
    assert (
        rows.column("Payload")[1].as_py().endswith('"at":3500,"result":' + failed["result"] + "}")
    )


def test_days_are_those_of_the_events() -> None:
    rows = convert_to_layout(batch(event(at=0), event(at=DAY - 1), event(at=DAY)))
    assert [(day, part.num_rows) for day, part in split_by_day(rows)] == [
        ("1970-01-01", 2),
        ("1970-01-02", 1),
    ]
