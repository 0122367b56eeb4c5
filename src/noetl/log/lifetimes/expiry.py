"""The lifetime of results in the memory twin: the same rules as `judge` in the schema, over the
same tables.
"""

from collections.abc import Iterator
from itertools import islice

import msgspec

from noetl.log.lifetimes.port import JudgedCounts
from noetl.log.projections.port import Projection
from noetl.log.tables import BlobKey, MemoryDatabase
from noetl.model.ids import ExecutionId, Micros, RefId
from noetl.model.messages import StoredRef
from noetl.model.reference import Lifetime, parse_uri

MAX_EXPIRED_REFS = 5_000  # references that expire in one run
# Times from here on are relative: FOREVER + t is over when t is longer ago than the retention.
RETENTION_BASE: Micros = 1 << 61
REJUDGE_DELAY_MICROS: Micros = 60_000_000  # until results that a relative may need are judged again
_stored_ref = msgspec.json.Decoder(StoredRef)
_projection = msgspec.json.Decoder(Projection)


def expire_results(
    db: MemoryDatabase, grace: Micros, retention: Micros | None, limit: int
) -> JudgedCounts:
    rows = {execution_id: _projection.decode(data) for execution_id, data in db.projections.items()}
    due = _find_due(db, rows, grace, retention, limit)
    live = [row.execution_id for row in rows.values() if row.ended_at is None]
    live_roots = {_find_root(rows, execution_id) for execution_id in live}
    expired = swept = 0
    for execution_id in due:
        root = _find_root(rows, execution_id)
        if root in live_roots:
            again_at = db.clock.now() + max(REJUDGE_DELAY_MICROS - grace, 0)
            db.judge_at[execution_id] = (again_at,)
            continue
        row = rows[execution_id]
        over = _find_lifetime_ends(db, row, rows.get(root, row))
        candidates = _find_expired(over, db.clock.now(), retention)
        gone = list(islice(candidates, MAX_EXPIRED_REFS - expired))
        for ref_id in gone:
            _expire_reference(db, ref_id)
        left = [at for ref_id, at in over.items() if ref_id not in db.expired]
        db.judge_at[execution_id] = _find_next_times(left, grace)
        expired += len(gone)
        swept += _sweep_puts(db, execution_id)
    return JudgedCounts(len(due), expired, swept)


def _find_due(
    db: MemoryDatabase,
    rows: dict[ExecutionId, Projection],
    grace: Micros,
    retention: Micros | None,
    limit: int,
) -> list[ExecutionId]:
    now = db.clock.now()
    times: list[tuple[Micros, ExecutionId]] = []
    for execution_id, row in rows.items():
        if row.ended_at is not None:
            judge_at = db.judge_at.get(execution_id, (row.ended_at,))
            times += [(at, execution_id) for at in judge_at]
    times.sort()
    by_age = [execution_id for at, execution_id in times if at <= now - grace][:limit]
    if retention is None:
        return by_age
    last = RETENTION_BASE + now - max(grace, retention)
    by_retention = [execution_id for at, execution_id in times if RETENTION_BASE <= at <= last][
        :limit
    ]
    return list(dict.fromkeys(by_age + by_retention))


def _find_next_times(over: list[Micros], grace: Micros) -> tuple[Micros, ...]:
    """When to judge again: by the earliest age and by the earliest retention.

    Both are kept, because the retention may change until then.
    """
    by_age = [max(at - grace, 0) for at in over if at < RETENTION_BASE]
    by_retention = [at for at in over if at >= RETENTION_BASE]
    return tuple(min(times) for times in (by_age, by_retention) if times)


def _find_root(rows: dict[ExecutionId, Projection], execution_id: ExecutionId) -> ExecutionId:
    """The execution that began the family, as far as it is known here."""
    while (row := rows.get(execution_id)) is not None:
        above = row.parent or row.retry_of
        if above is None:
            break
        execution_id = above
    return execution_id


def _find_lifetime_ends(
    db: MemoryDatabase, row: Projection, root: Projection
) -> dict[RefId, Micros]:
    """For each result that may expire, the time when its lifetime is over."""
    pinned = {pin.step for pin in db.result_pins if pin.execution_id == row.execution_id}
    over: dict[RefId, Micros] = {}
    for ref_id, data in db.refs.items():
        ref = _stored_ref.decode(data)
        where = parse_uri(ref.reference.uri)
        if where.execution_id != row.execution_id or ref_id in db.expired or where.step in pinned:
            continue
        lifetime = ref.lifetime or Lifetime()
        if lifetime.ttl is not None:
            over[ref_id] = db.ref_times[ref_id] + lifetime.ttl
        elif lifetime.scope == "step":
            over[ref_id] = 0
        elif lifetime.scope == "workflow":
            over[ref_id] = RETENTION_BASE + (root.ended_at or 0)
        elif lifetime.scope != "permanent":
            over[ref_id] = RETENTION_BASE + (row.ended_at or 0)
    return over


def _find_expired(
    over: dict[RefId, Micros], now: Micros, retention: Micros | None
) -> Iterator[RefId]:
    last_kept = None if retention is None else RETENTION_BASE + now - retention
    for ref_id, at in over.items():
        is_over = at <= now
        if last_kept is not None and RETENTION_BASE <= at <= last_kept:
            is_over = True
        if is_over:
            yield ref_id


def _expire_reference(db: MemoryDatabase, ref_id: RefId) -> None:
    uri = _stored_ref.decode(db.refs[ref_id]).reference.uri
    db.expired[ref_id] = db.clock.now()
    db.blobs.pop(BlobKey(ref_id, uri), None)


def _sweep_puts(db: MemoryDatabase, execution_id: ExecutionId) -> int:
    """Delete the payloads of the execution that were put and that no reference names."""
    names = [name for name, owner in db.puts.items() if owner == execution_id]
    orphans = [name for name in names if name.ref_id not in db.refs]
    for name in names:
        del db.puts[name]
    for name in orphans:
        del db.blobs[name]
    return len(orphans)
