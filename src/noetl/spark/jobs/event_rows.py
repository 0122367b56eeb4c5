"""Events as rows: the columns of `noetl.event`, and the checksum of an execution's events, which
equals the one that the database computes."""

from collections.abc import Iterable, Iterator
from hashlib import sha256
from itertools import pairwise
from typing import Any

import pyarrow as pa

from noetl.log.events.event_halves import join_event
from noetl.model.events import Event

MOMENT_TYPE = pa.timestamp("us", "UTC")
EVENT_SCHEMA = pa.schema(
    [
        pa.field("shard", pa.int16(), nullable=False),
        pa.field("seq", pa.int64(), nullable=False),
        pa.field("epoch", pa.int64(), nullable=False),
        pa.field("tenant", pa.int32(), nullable=False),
        pa.field("execution_id", pa.int64(), nullable=False),
        pa.field("event_type", pa.string(), nullable=False),
        ("step", pa.string()),
        ("command_id", pa.string()),
        ("attempt", pa.int32()),
        ("status", pa.string()),
        ("result", pa.string()),
        pa.field("meta", pa.string(), nullable=False),
        pa.field("dedup_key", pa.string(), nullable=False),
        pa.field("at", MOMENT_TYPE, nullable=False),
    ]
)
EVENT_COLUMNS = (
    "shard, seq, epoch, tenant, execution_id, event_type, step, command_id, attempt, status, result::text as result, "
    "meta::text as meta, dedup_key, at"
)
_UNIT, _NOTHING = "\x1f", "\x1e"


def cast_events(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Cast rows of the database to the schema of event rows."""
    pairs = zip(batch.columns, EVENT_SCHEMA, strict=True)
    columns = [column.cast(field.type) for column, field in pairs]
    return pa.RecordBatch.from_arrays(columns, schema=EVENT_SCHEMA)


def decode_events(table: pa.Table) -> Iterator[Event]:
    """The events of the rows, in the order of the log."""
    ordered = _sort_by_seq(table)
    metas = ordered.column("meta").to_pylist()
    results = ordered.column("result").to_pylist()
    for meta, result in zip(metas, results, strict=True):
        yield join_event(meta, result)


def _sort_by_seq(table: pa.Table) -> pa.Table:
    """The rows by seq. Most tables are sorted already, and checking that is cheaper than sorting."""
    seq = table.column("seq").to_numpy()
    is_sorted = (seq[1:] > seq[:-1]).all()
    return table if is_sorted else table.sort_by("seq")


def split_by_execution(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """A table for every execution. The rows of the batches are in the order of executions."""
    parts: list[pa.RecordBatch] = []  # of the current execution
    current_id: int | None = None
    for batch in batches:
        ids = batch.column("execution_id").to_numpy()
        is_change = ids[1:] != ids[:-1]
        changes = is_change.nonzero()[0] + 1
        edges = [0, *changes.tolist(), len(ids)]
        for start, end in pairwise(edges):
            if start == end:
                continue
            if parts and ids[start] != current_id:
                yield pa.Table.from_batches(parts)
                parts = []
            parts.append(batch.slice(start, end - start))
            current_id = ids[start]
    if parts:
        yield pa.Table.from_batches(parts)


def compute_checksum(table: pa.Table) -> str:
    """The checksum of one execution's events: the sha256 of the sha256 of each event's text. The
    text is the same as that of `noetl.event_text`."""
    digest = sha256()
    for row in _list_event_texts(_sort_by_seq(table)):
        digest.update(sha256(row.encode()).hexdigest().encode())
    return digest.hexdigest()


def _list_event_texts(table: pa.Table) -> Iterator[str]:
    columns = [_column_to_text(table.column(field.name), field) for field in EVENT_SCHEMA]
    return (_UNIT.join(row) for row in zip(*columns, strict=True))


def _column_to_text(column: Any, field: pa.Field) -> list[str]:
    plain = column.cast(pa.int64()) if field.type == MOMENT_TYPE else column
    return plain.cast(pa.string()).fill_null(_NOTHING).to_pylist()  # type: ignore[no-any-return]
