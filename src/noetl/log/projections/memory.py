"""The memory twin of the projections. Every method is one critical section."""

import re
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from math import ceil

import msgspec

from noetl.log.projections.list_walks import Lane, Walk, choose_walk, make_lanes
from noetl.log.projections.port import (
    LAST_ID,
    MAX_COUNTED_ROWS,
    MAX_HISTOGRAM_ROWS,
    MAX_LISTED_RETRIES,
    MAX_START_DELAY_MICROS,
    MAX_WALKED_ROWS,
    ExecutionFilter,
    Histogram,
    Projection,
    ShardRows,
    StatusCount,
    WalkEnd,
    has_wildcard,
)
from noetl.log.tables import MemoryDatabase
from noetl.model import codec
from noetl.model.errors import NoetlError
from noetl.model.ids import ExecutionId, Micros, Tenant, get_creation_time, get_first_id
from noetl.model.statuses import STATUSES

_projection = msgspec.json.Decoder(Projection)


class ProjectionsMemory:
    def __init__(self, database: MemoryDatabase) -> None:
        self._db = database

    async def write_projections(self, batch: list[ShardRows]) -> list[bool]:
        """Write all projections, or raise and write none."""
        db = self._db
        owned = [db.shards[shard_rows.shard].epoch == shard_rows.epoch for shard_rows in batch]
        for shard_rows, ours in zip(batch, owned, strict=True):
            for row in shard_rows.rows:
                is_ahead = ours and row.last_seq > db.get_execution_rows(row.execution_id).last_seq
                if is_ahead or row.shard != shard_rows.shard:
                    raise NoetlError(
                        f"projection of {row.execution_id} is ahead of the log or of another shard"
                    )
        for shard_rows, ours in zip(batch, owned, strict=True):
            if ours:
                self._write_projections(shard_rows)
        return owned

    def _write_projections(self, shard_rows: ShardRows) -> None:
        db, shard = self._db, shard_rows.shard
        for row in shard_rows.rows:
            stored = self._read_projection(row.execution_id)
            if stored is None or stored.last_seq < row.last_seq:
                db.projections[row.execution_id] = codec.encode(row)
        checkpoint = min(shard_rows.checkpoint, db.shards[shard].last_seq)
        db.checkpoints[shard] = max(db.checkpoints[shard], checkpoint)

    async def read_projection(self, execution_id: ExecutionId) -> Projection | None:
        return self._read_projection(execution_id)

    async def list_executions(
        self,
        tenant: Tenant,
        wanted: ExecutionFilter,
        before: ExecutionId | None,
        limit: int,
    ) -> list[Projection]:
        found: dict[ExecutionId, Projection] = {}
        for lane in make_lanes(wanted):
            walked = islice(self._walk(tenant, wanted, before, lane), MAX_WALKED_ROWS)
            matching = (row for row in walked if self._matches_filter(row, wanted))
            found |= {row.execution_id: row for row in islice(matching, limit)}
        newest = sorted(found.values(), key=_get_number, reverse=True)[:limit]
        return [msgspec.structs.replace(row, state=None) for row in newest]

    async def find_walk_end(
        self,
        tenant: Tenant,
        wanted: ExecutionFilter,
        before: ExecutionId | None,
    ) -> WalkEnd:
        looked_at = 0
        ends: list[Projection] = []
        for lane in make_lanes(wanted):
            walked = list(islice(self._walk(tenant, wanted, before, lane), MAX_WALKED_ROWS))
            looked_at += len(walked)
            if len(walked) == MAX_WALKED_ROWS:
                ends.append(walked[-1])
        last = max(ends, key=_get_number, default=None)
        return WalkEnd(looked_at, None if last is None else last.execution_id)

    async def count_executions(
        self,
        tenant: Tenant,
        wanted: ExecutionFilter,
    ) -> dict[str, StatusCount]:
        counts: dict[str, StatusCount] = {}
        for status in (*STATUSES, "waiting"):
            of_status = wanted
            if status == "waiting":
                of_status = msgspec.structs.replace(wanted, waiting=True)
            walk = self._walk(tenant, of_status, None, Lane(status), start_delay=0)
            walked = list(islice(walk, MAX_COUNTED_ROWS + 1))
            matching = [row for row in walked if self._matches_subject(row, wanted)]
            is_cut = len(walked) > MAX_COUNTED_ROWS
            counts[status] = StatusCount(min(len(matching), MAX_COUNTED_ROWS), is_cut)
        return counts

    async def make_histogram(
        self,
        tenant: Tenant,
        wanted: ExecutionFilter,
        end: Micros,
        buckets: int,
    ) -> Histogram:
        walked: list[Projection] = []
        cuts: list[int] = []
        for status in STATUSES:
            walk = self._walk(tenant, wanted, None, Lane(status), start_delay=0)
            of_status = list(islice(walk, MAX_HISTOGRAM_ROWS))
            walked += of_status
            if len(of_status) == MAX_HISTOGRAM_ROWS:
                cuts.append(_get_number(of_status[-1]))
        matching = [
            row
            for row in walked
            if self._matches_subject(row, wanted) and _get_number(row) >= max(cuts, default=0)
        ]
        shown = sorted(matching, key=_get_number, reverse=True)[:MAX_HISTOGRAM_ROWS]
        if len(shown) == MAX_HISTOGRAM_ROWS:
            cuts.append(_get_number(shown[-1]))
        back = max(cuts, default=None)
        return _fill_histogram(shown, wanted.since, back, end // 1_000, buckets)

    async def list_retries(self, execution_id: ExecutionId) -> list[ExecutionId]:
        rows = self._read_all()
        retries = [row.execution_id for row in rows if row.retry_of == execution_id]
        return sorted(retries, key=int, reverse=True)[:MAX_LISTED_RETRIES]

    async def count_children(self, parent: ExecutionId) -> dict[str, int]:
        rows = self._read_all()
        return dict(Counter(row.status for row in rows if row.parent == parent))

    async def read_checkpoint(self, shard: int) -> int:
        return self._db.checkpoints[shard]

    def _read_all(self) -> Iterator[Projection]:
        for execution_id in self._db.projections:
            row = self._read_projection(execution_id)
            if row is not None:
                yield row

    def _walk(
        self,
        tenant: Tenant,
        wanted: ExecutionFilter,
        before: ExecutionId | None,
        lane: Lane,
        start_delay: Micros = MAX_START_DELAY_MICROS,
    ) -> Iterator[Projection]:
        """The rows of one lane of the index that the filter follows, newest first."""
        floor = 0 if wanted.since is None else get_first_id(wanted.since - start_delay)
        ceiling = LAST_ID if before is None else int(before)
        if wanted.until is not None:
            ceiling = min(ceiling, get_first_id(wanted.until))
        walk = choose_walk(wanted)
        numbers = sorted(map(int, self._db.projections), reverse=True)
        for number in numbers:
            row = self._read_projection(ExecutionId(str(number)))
            if row is None or row.tenant != tenant or not floor <= number < ceiling:
                continue
            if _is_in_lane(row, walk, wanted, lane):
                yield row

    def _matches_filter(self, row: Projection, wanted: ExecutionFilter) -> bool:
        return (
            self._matches_subject(row, wanted)
            and (not wanted.statuses or row.status in wanted.statuses)
            and wanted.parent in (None, row.parent)
            and (wanted.since is None or row.started_at >= wanted.since)
            and (wanted.until is None or row.started_at < wanted.until)
            and (not wanted.waiting or row.waiting)
            and (not wanted.text or _matches_text(row, wanted))
        )

    def _matches_subject(self, row: Projection, wanted: ExecutionFilter) -> bool:
        """Whether the row has the path and, for roots, nothing that started it."""
        if wanted.path is not None and not _matches_path(row.path, wanted.path):
            return False
        if not wanted.roots:
            return True
        return row.parent is None and row.execution_id not in self._db.children.values()

    def _read_projection(self, execution_id: ExecutionId) -> Projection | None:
        data = self._db.projections.get(execution_id)
        return None if data is None else _projection.decode(data)


def _is_in_lane(row: Projection, walk: Walk, wanted: ExecutionFilter, lane: Lane) -> bool:
    match walk:
        case "ids":
            return lane.low <= int(row.execution_id) < lane.high
        case "parent":
            return row.parent == wanted.parent
        case "waiting":
            return row.waiting
        case "path":
            return row.path == wanted.path and row.status == lane.status
        case "roots":
            return row.parent is None and row.status == lane.status
        case "status":
            return row.status == lane.status


def _matches_text(row: Projection, wanted: ExecutionFilter) -> bool:
    if row.path.lower().startswith(wanted.text.lower()):
        return True
    error = (row.error or "").lower()
    return all(word in error for word in wanted.words)


def _matches_path(path: str, wanted: str) -> bool:
    if not has_wildcard(wanted):
        return path == wanted
    pattern = ".*".join(map(re.escape, wanted.split("*")))
    return re.fullmatch(pattern, path) is not None


def _get_number(row: Projection) -> int:
    return int(row.execution_id)


def _fill_histogram(
    rows: list[Projection], since: Micros | None, back: int | None, end_ms: int, buckets: int
) -> Histogram:
    oldest = back
    if oldest is None:
        oldest = min(map(_get_number, rows), default=0)
    start_ms = get_creation_time(str(oldest)) // 1_000
    if back is None and since is not None:
        start_ms = since // 1_000
    start_ms = min(start_ms, end_ms - 1)
    width_ms = max(1, ceil((end_ms - start_ms) / buckets))
    by_status = {status: [0] * buckets for status in STATUSES}
    for row in rows:
        bucket = (get_creation_time(row.execution_id) // 1_000 - start_ms) // width_ms
        by_status[row.status][min(max(bucket, 0), buckets - 1)] += 1
    reaches_back_to = None if back is None else get_creation_time(str(back))
    return Histogram(start_ms, width_ms, by_status, reaches_back_to)
