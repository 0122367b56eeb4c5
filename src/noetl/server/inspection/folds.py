"""Folds of executions: the newest ones from a cache, older ones from a snapshot and a page of the log.

A fold in the cache goes forward by the events that were appended since, so a read costs what is new.
A fold that passes a mark is stored as a snapshot. So the state at any event is the last snapshot
before it and the events between, which are at most one page.
"""

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec

from noetl.caches import LruCache
from noetl.engine.execution_fold import (
    LARGE_SNAPSHOT_INTERVAL_EVENTS,
    SNAPSHOT_INTERVAL_EVENTS,
    ExecutionFold,
    compute_fold_shape,
    decode_fold,
    make_empty_fold,
)
from noetl.log.events.port import EventLog, RecordedEvent
from noetl.log.snapshots.port import Snapshot, SnapshotStore
from noetl.model.errors import InvalidInput, Unavailable
from noetl.model.ids import ExecutionId, Micros
from noetl.server.dispatch.states import Unfoldable
from noetl.time_slice import TimeSlice

log = logging.getLogger(__name__)

MAX_CACHED_FOLDS = 128
EVENTS_PER_READ = LARGE_SNAPSHOT_INTERVAL_EVENTS  # a page reaches from one snapshot to the next
LAST_SEQ = (1 << 63) - 1


@dataclass(slots=True)
class CachedFold:
    fold: ExecutionFold
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class ExecutionFolds:
    """Folds by execution id. A fold must be read before the next `await`: it may go forward then."""

    def __init__(
        self,
        log: EventLog,
        snapshots: SnapshotStore,
        time_slice_s: float | None = None,
        max_cached: int = MAX_CACHED_FOLDS,
    ) -> None:
        self._log = log
        self._snapshots = snapshots
        self._time_slice_s = time_slice_s
        self._cached: LruCache[ExecutionId, CachedFold] = LruCache(max_cached)

    async def read_newest(
        self, execution_id: ExecutionId, max_events: int | None = None
    ) -> ExecutionFold:
        """The fold of all events; of at most `max_events` new ones if that is given.

        Callers at the same time share one fold. Raises `Unfoldable`.
        """
        cached = self._cached.get(execution_id)
        if cached is None:
            cached = CachedFold(make_empty_fold(execution_id))
            self._cached.put(execution_id, cached)
        async with cached.lock:
            if not cached.fold.seq:
                cached.fold = await self._read_base(execution_id, LAST_SEQ)
            try:
                await self._fold_new(execution_id, cached.fold, max_events)
            except Unfoldable:
                self._cached.pop(execution_id)  # the event may be folded in part
                raise
        return cached.fold

    async def read_at(self, execution_id: ExecutionId, seq: int) -> ExecutionFold:
        """The fold up to the last event at or before `seq`, for the caller alone.

        Raises `InvalidInput` if the execution has no event so early.
        """
        fold = await self._read_base(execution_id, seq)
        await self._fold_up_to(execution_id, fold, seq)
        if not fold.seq:
            raise InvalidInput(
                f"execution {execution_id} has no event at or before {seq}",
                hint=f"noetl exec events {execution_id} lists its events",
            )
        return fold

    async def read_at_number(self, execution_id: ExecutionId, number: int) -> ExecutionFold:
        """The fold up to the event with this ordinal within the execution, for the caller alone.

        Raises `InvalidInput` if the execution has fewer events.
        """
        shape = compute_fold_shape()
        position = await self._snapshots.find_position_by_number(execution_id, shape, number)
        fold = make_empty_fold(execution_id)
        if position is not None:
            fold = await self._read_base(execution_id, position.seq)
        await self._fold_new(execution_id, fold, number - fold.state.events)
        if fold.state.events < number:
            raise _make_number_error(execution_id, number, fold.state.events)
        return fold

    async def read_at_moment(self, execution_id: ExecutionId, moment: Micros) -> ExecutionFold:
        """The fold up to the last event that happened at this moment or before it."""
        shape = compute_fold_shape()
        position = await self._snapshots.find_position_by_time(execution_id, shape, moment + 1)
        fold = make_empty_fold(execution_id)
        if position is not None:
            fold = await self._read_base(execution_id, position.seq)
        await self._fold_until(execution_id, fold, moment)
        if not fold.seq:
            raise InvalidInput(
                f"execution {execution_id} has no event so early", hint="give a later moment"
            )
        return fold

    async def find_numbers(self, execution_id: ExecutionId, seqs: list[int]) -> list[int]:
        """The ordinals of these events within their execution, from 1. They are in order."""
        if not seqs:
            return []
        shape = compute_fold_shape()
        positions = await self._snapshots.find_positions(execution_id, shape, seqs)
        bases: list[tuple[int, int]] = []  # an event before each, and its number; -1: the last one
        before = 0
        for seq, position in zip(seqs, positions, strict=True):
            if position is not None and position.seq > before:
                bases.append((position.seq, position.events))
            else:
                bases.append((before, -1 if before else 0))
            before = seq
        ranges = [(base, seq) for (base, _), seq in zip(bases, seqs, strict=True)]
        counts = await self._log.count_events(execution_id, ranges)
        numbers: list[int] = []
        for (_, known), count in zip(bases, counts, strict=True):
            numbers.append((numbers[-1] if known < 0 else known) + count)
        return numbers

    async def find_seq(self, execution_id: ExecutionId, number: int) -> int:
        """The event with this ordinal within its execution, from 1.

        Raises `InvalidInput` if the execution has fewer events.
        """
        shape = compute_fold_shape()
        position = await self._snapshots.find_position_by_number(execution_id, shape, number)
        seq, known = (0, 0) if position is None else (position.seq, position.events)
        while known < number:
            limit = min(number - known, EVENTS_PER_READ)
            page = await self._log.read_events(execution_id, seq, limit)
            if not page:
                raise _make_number_error(execution_id, number, known)
            seq, known = page[-1].seq, known + len(page)
        return seq

    def forget(self, execution_id: ExecutionId) -> None:
        self._cached.pop(execution_id)

    async def _read_base(self, execution_id: ExecutionId, seq: int) -> ExecutionFold:
        """The last stored fold at or before an event, or an empty one."""
        snapshot = await self._snapshots.read_snapshot(execution_id, compute_fold_shape(), seq)
        if snapshot is not None:
            with suppress(msgspec.DecodeError):
                return decode_fold(snapshot.state, snapshot.bands, snapshot.seq)
        return make_empty_fold(execution_id)

    async def _fold_new(
        self, execution_id: ExecutionId, fold: ExecutionFold, max_events: int | None
    ) -> None:
        """Fold the events that follow."""
        left = max_events
        while left is None or left > 0:
            limit = EVENTS_PER_READ if left is None else min(left, EVENTS_PER_READ)
            page = await self._log.read_events(execution_id, fold.seq, limit)
            await self._fold_page(execution_id, fold, page)
            if len(page) < limit:
                return
            if left is not None:
                left -= len(page)

    async def _fold_up_to(self, execution_id: ExecutionId, fold: ExecutionFold, seq: int) -> None:
        """Fold the events that follow, up to `seq`."""
        while fold.seq < seq:
            page = await self._log.read_events_between(execution_id, fold.seq, seq, EVENTS_PER_READ)
            await self._fold_page(execution_id, fold, page)
            if len(page) < EVENTS_PER_READ:
                return

    async def _fold_until(
        self, execution_id: ExecutionId, fold: ExecutionFold, moment: Micros
    ) -> None:
        """Fold the events that follow, up to this moment."""
        while True:
            limit = SNAPSHOT_INTERVAL_EVENTS
            page = await self._log.read_events(execution_id, fold.seq, limit)
            wanted = [recorded for recorded in page if recorded.event.at <= moment]
            await self._fold_page(execution_id, fold, wanted)
            if len(wanted) < limit:
                return

    async def _fold_page(
        self, execution_id: ExecutionId, fold: ExecutionFold, page: list[RecordedEvent]
    ) -> None:
        """Fold these events, and store the snapshots that they pass."""
        time_slice = TimeSlice(self._time_slice_s)
        snapshots: list[Snapshot] = []
        for recorded in page:
            _fold_event(fold, recorded)
            if fold.is_at_mark:
                snapshots += _make_snapshot(execution_id, fold)
            if time_slice.is_used_up:
                await time_slice.pause()
        await self._store_snapshots(snapshots)

    async def _store_snapshots(self, snapshots: list[Snapshot]) -> None:
        """Store snapshots. They only save time, so a store that cannot take them is no error."""
        if not snapshots:
            return
        try:
            await self._snapshots.put_snapshots(snapshots)
        except Unavailable as error:
            log.warning("snapshots are not stored", extra={"error": str(error)})


def _make_number_error(execution_id: ExecutionId, number: int, count: int) -> InvalidInput:
    return InvalidInput(
        f"execution {execution_id} has no event {number}: it has {count}",
        hint=f"noetl exec events {execution_id} lists them with their numbers",
    )


def _fold_event(fold: ExecutionFold, recorded: RecordedEvent) -> None:
    """Raises `Unfoldable` if the event does not fit."""
    try:
        fold.fold_event(recorded.seq, recorded.event)
    except Exception as error:
        raise Unfoldable(fold.state, recorded.seq, f"fold:{recorded.seq}", error) from error


def _make_snapshot(execution_id: ExecutionId, fold: ExecutionFold) -> list[Snapshot]:
    """The snapshot of a fold that stands at a mark; none if the state waits for a later mark."""
    encoded = fold.encode_snapshot()
    if encoded is None:
        return []
    state, bands = encoded
    return [
        Snapshot(
            execution_id=execution_id,
            seq=fold.seq,
            events=fold.state.events,
            at=fold.state.last_at,
            shape=compute_fold_shape(),
            state=state,
            bands=bands,
        )
    ]
