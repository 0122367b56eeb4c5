"""An event as a row: the columns of `noetl.event`, and the checksum of an execution's events as the database makes it too."""

from collections.abc import Iterable, Iterator
from hashlib import sha256
from itertools import pairwise
from typing import Any

import pyarrow as pa

from noetl.log.writes import join
from noetl.model.events import Event

MOMENT = pa.timestamp("us", "UTC")
EVENTS = pa.schema(
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
        pa.field("at", MOMENT, nullable=False),
    ]
)
COLUMNS = (
    "shard, seq, epoch, tenant, execution_id, event_type, step, command_id, attempt, status, result::text as result, "
    "meta::text as meta, dedup_key, at"
)
_UNIT, _NOTHING = "\x1f", "\x1e"


def typed(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Rows of the database in the types of EVENTS."""
    return pa.RecordBatch.from_arrays(
        [column.cast(field.type) for column, field in zip(batch.columns, EVENTS, strict=True)],
        schema=EVENTS,
    )


def decoded(table: pa.Table) -> Iterator[Event]:
    """In the order of the log."""
    ordered = _ordered(table)
    for meta, result in zip(
        ordered.column("meta").to_pylist(), ordered.column("result").to_pylist(), strict=True
    ):
        yield join(meta, result)


def _ordered(table: pa.Table) -> pa.Table:
    """By seq, as most come already: looking is cheaper than sorting."""
    seq = table.column("seq").to_numpy()
    return table if (seq[1:] > seq[:-1]).all() else table.sort_by("seq")


def by_execution(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """One table each, of rows that come in the order of executions."""
    held: list[pa.RecordBatch] = []
    for batch in batches:
        ids = batch.column("execution_id").to_numpy()
        edges = [0, *((ids[1:] != ids[:-1]).nonzero()[0] + 1).tolist(), len(ids)]
        for start, end in pairwise(edges):
            part = batch.slice(start, end - start)
            if (
                held
                and part.num_rows
                and held[0].column("execution_id")[0] != part.column("execution_id")[0]
            ):
                yield pa.Table.from_batches(held)
                held = []
            if part.num_rows:
                held.append(part)
    if held:
        yield pa.Table.from_batches(held)


def checksum(table: pa.Table) -> str:
    """Of one execution's events: what `noetl.event_text` makes of each, summed, and the sums summed."""
    whole = sha256()
    for row in _texts(_ordered(table)):
        whole.update(sha256(row.encode()).hexdigest().encode())
    return whole.hexdigest()


def _texts(table: pa.Table) -> Iterator[str]:
    columns = [_text(table.column(field.name), field) for field in EVENTS]
    return (_UNIT.join(row) for row in zip(*columns, strict=True))


def _text(column: Any, field: pa.Field) -> list[str]:
    plain = column.cast(pa.int64()) if field.type == MOMENT else column
    return plain.cast(pa.string()).fill_null(_NOTHING).to_pylist()  # type: ignore[no-any-return]
