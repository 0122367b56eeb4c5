"""What one execution did, from literal events."""

import pyarrow as pa

from noetl.log.events.event_halves import split_event
from noetl.model import events as e
from noetl.model.codec import encode
from noetl.model.envelope import Envelope
from noetl.model.ids import ActivationId, CommandId, ExecutionId, RefId
from noetl.model.reference import Reference
from noetl.spark.jobs.stats import FACT_SCHEMA, collect_execution_facts
from tests.unit.spark.jobs.test_rows import batch, event

ACTIVATION, COMMAND = ActivationId("a"), CommandId("c")


def table(*events: e.Event) -> pa.Table:
    split_up = [split_event(each, encode(each)) for each in events]
    rows = [
        event(seq=number, meta=meta, result=result)
        for number, (meta, result) in enumerate(split_up, 1)
    ]
    return pa.Table.from_batches([batch(*rows)])


def test_a_run_of_a_step_has_its_time_retries_and_bytes() -> None:
    uri = "noetl://execution/7/result/s/k"
    envelope = Envelope(
        status="ok", reference=Reference(ref_id=RefId("1"), type="kv", uri=uri, bytes=30)
    )
    made = collect_execution_facts(
        table(
            e.PlaybookInitialized(at=10, execution_id=ExecutionId("7"), path="p", playbook="h"),
            e.StepEnter(at=20, step="s", activation=ACTIVATION, run=1, cause="x"),
            e.CommandIssued(
                at=20, command_id=COMMAND, step="s", activation=ACTIVATION, kind="run", pool="cpu"
            ),
            e.RetryStarted(
                at=30, command_id=COMMAND, attempt=1, task="t", run=1, tries=1, error=None
            ),
            e.CommandCompleted(at=50, command_id=COMMAND, attempt=1, result=envelope),
            e.StepExit(at=60, step="s", activation=ACTIVATION, result=envelope),
            e.PlaybookCompleted(at=70),
        )
    )
    assert made.schema == FACT_SCHEMA
    step, whole = made.to_pylist()
    assert step == {
        "execution_id": 7, "path": "p", "step": "s", "status": "ok", "micros": 40, "retries": 1, "bytes": 30,
    }  # fmt: skip
    assert whole == {**step, "step": None, "micros": 60}


def test_what_has_not_ended_is_not_counted() -> None:
    begun = e.StepEnter(at=20, step="s", activation=ACTIVATION, run=1, cause="x")
    assert collect_execution_facts(table(begun)).num_rows == 0
