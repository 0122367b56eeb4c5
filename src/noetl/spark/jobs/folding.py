"""Folds an execution from its events by the engine: the row that the projection should hold."""

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from noetl.engine.fold import evolve
from noetl.engine.state import make_empty_execution
from noetl.engine.summary import summarise_broken, summarise_execution
from noetl.model import codec
from noetl.spark.jobs.event_rows import decode_events

PROJECTIONS = pa.schema(
    [
        ("execution_id", pa.int64()),
        ("shard", pa.int16()),
        ("tenant", pa.int32()),
        ("path", pa.string()),
        ("status", pa.string()),
        ("last_seq", pa.int64()),
        ("started_at", pa.int64()),
        ("updated_at", pa.int64()),
        ("ended_at", pa.int64()),
        ("parent", pa.int64()),
        ("retry_of", pa.int64()),
        ("error", pa.string()),
        ("steps", pa.int32()),
        ("recovered", pa.int32()),
        ("live", pa.string()),
        ("waiting", pa.bool_()),
        ("state", pa.binary()),
        ("state_hash", pa.string()),
    ]
)
FIELDS = tuple(name for name in PROJECTIONS.names if name != "execution_id")


def fold_execution(events: pa.Table, unreadable: dict[str, str]) -> pa.Table:
    """The projection row of one execution. `unreadable` maps the content hash of a playbook to the
    reason why it cannot be read any more."""
    execution_id = events.column("execution_id")[0].as_py()
    row: dict[str, Any] = {
        "execution_id": execution_id,
        "shard": events.column("shard")[0].as_py(),
        "tenant": events.column("tenant")[0].as_py(),
        "last_seq": pc.max(events.column("seq")).as_py(),
    }
    row |= _fold_events(events, execution_id, unreadable)
    if row["live"] is not None:
        row["live"] = codec.encode(row["live"]).decode()
    return pa.Table.from_pylist([row], PROJECTIONS)


def _fold_events(
    events: pa.Table,
    execution_id: int,
    unreadable: dict[str, str],
) -> dict[str, Any]:
    state = make_empty_execution(str(execution_id))
    try:
        for event in decode_events(events):
            state = evolve(state, event)
    except Exception as error:  # every error becomes the status of the execution
        return summarise_broken(state, f"{type(error).__name__}: {error}")
    if state.playbook in unreadable:
        return summarise_broken(state, unreadable[state.playbook])
    row = summarise_execution(state)
    parent, retry_of = _parse_id(row["parent"]), _parse_id(row["retry_of"])
    return {**row, "parent": parent, "retry_of": retry_of}


def _parse_id(execution_id: str | None) -> int | None:
    return None if execution_id is None else int(execution_id)
