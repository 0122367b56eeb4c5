"""How long results stay, for the twin in memory: what `judge` of the schema does, over the same tables."""

from collections.abc import Iterator
from itertools import islice

import msgspec

from noetl.log.port import Judged, Projection
from noetl.log.tables import MemoryDatabase
from noetl.model.ids import ExecutionId, Micros, RefId
from noetl.model.messages import StoredRef
from noetl.model.reference import Lifetime, parse_uri

EXPIRING = 5_000  # references that expire in one run
FOREVER: Micros = 1 << 61  # from here on: so long after the retention of now
NOT_BEFORE: Micros = 60_000_000  # before what a relative may need is looked at again
_stored_ref = msgspec.json.Decoder(StoredRef)
_projection = msgspec.json.Decoder(Projection)


def judge(db: MemoryDatabase, grace: Micros, retention: Micros | None, limit: int) -> Judged:
    rows = {each: _projection.decode(data) for each, data in db.projections.items()}
    due = _due(db, rows, grace, retention, limit)
    needed = {_root(rows, row.execution_id) for row in rows.values() if row.ended_at is None}
    expired = swept = 0
    for execution_id in due:
        root = _root(rows, execution_id)
        if root in needed:
            db.judge_at[execution_id] = (db.clock.now() + max(NOT_BEFORE - grace, 0),)
            continue
        found = _over(db, rows[execution_id], rows.get(root, rows[execution_id]))
        gone = list(islice(_gone(found, db.clock.now(), retention), EXPIRING - expired))
        for ref_id in gone:
            _expire(db, ref_id)
        db.judge_at[execution_id] = _again(
            [at for each, at in found.items() if each not in db.expired], grace
        )
        expired += len(gone)
        swept += _sweep(db, execution_id)
    return Judged(len(due), expired, swept)


def _due(
    db: MemoryDatabase,
    rows: dict[ExecutionId, Projection],
    grace: Micros,
    retention: Micros | None,
    limit: int,
) -> list[ExecutionId]:
    now = db.clock.now()
    ended = {each: row.ended_at for each, row in rows.items() if row.ended_at is not None}
    waiting = sorted(
        (at, each) for each, end in ended.items() for at in db.judge_at.get(each, (end,))
    )
    first = [each for at, each in waiting if at <= now - grace][:limit]
    if retention is None:
        return first
    last = FOREVER + now - max(grace, retention)
    then = [each for at, each in waiting if FOREVER <= at <= last][:limit]
    return list(dict.fromkeys(first + then))


def _again(over: list[Micros], grace: Micros) -> tuple[Micros, ...]:
    """Which of an age and the retention of then comes first nobody knows: each has its time."""
    by_age = [max(at - grace, 0) for at in over if at < FOREVER]
    by_retention = [at for at in over if at >= FOREVER]
    return tuple(min(some) for some in (by_age, by_retention) if some)


def _root(rows: dict[ExecutionId, Projection], execution_id: ExecutionId) -> ExecutionId:
    """Who began it all, as far as it is known here."""
    while (row := rows.get(execution_id)) is not None and (
        above := row.parent or row.retry_of
    ) is not None:
        execution_id = above
    return execution_id


def _over(db: MemoryDatabase, row: Projection, root: Projection) -> dict[RefId, Micros]:
    """When each of its results that may go is over."""
    pinned = {step for execution_id, step in db.result_pins if execution_id == row.execution_id}
    over: dict[RefId, Micros] = {}
    for ref_id, data in db.refs.items():
        ref = _stored_ref.decode(data)
        where, lifetime = parse_uri(ref.reference.uri), ref.lifetime or Lifetime()
        if where.execution_id != row.execution_id or ref_id in db.expired or where.step in pinned:
            continue
        if lifetime.ttl is not None:
            over[ref_id] = db.ref_times[ref_id] + lifetime.ttl
        elif lifetime.scope == "step":
            over[ref_id] = 0
        elif lifetime.scope != "permanent":
            over[ref_id] = FOREVER + ((root if lifetime.scope == "workflow" else row).ended_at or 0)
    return over


def _gone(over: dict[RefId, Micros], now: Micros, retention: Micros | None) -> Iterator[RefId]:
    for ref_id, at in over.items():
        if at <= now or (retention is not None and FOREVER <= at <= FOREVER + now - retention):
            yield ref_id


def _expire(db: MemoryDatabase, ref_id: RefId) -> None:
    uri = _stored_ref.decode(db.refs[ref_id]).reference.uri
    db.expired[ref_id] = db.clock.now()
    db.blobs.pop((ref_id, uri), None)


def _sweep(db: MemoryDatabase, execution_id: ExecutionId) -> int:
    """What was put for it and never named."""
    put = [name for name, of in db.puts.items() if of == execution_id]
    orphans = [name for name in put if name[0] not in db.refs]
    for name in put:
        del db.puts[name]
    for name in orphans:
        del db.blobs[name]
    return len(orphans)
