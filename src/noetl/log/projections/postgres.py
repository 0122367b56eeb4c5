"""The projections in Postgres."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from noetl.log.columns import read_seq, to_execution_id, to_number
from noetl.log.projections.list_walks import choose_walk, make_lanes
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
from noetl.log.projections.stored_state import compress_state, decompress_state
from noetl.model import codec
from noetl.model.errors import NoetlError
from noetl.model.ids import ExecutionId, Micros, Tenant, get_creation_time, get_first_id
from noetl.model.live_summary import LiveSummary
from noetl.model.statuses import STATUSES
from noetl.postgres.arrays import format_documents, format_numbers, format_texts
from noetl.postgres.pool import Database, Record
from noetl.postgres.queries import load_queries
from noetl.time_slice import TimeSlice

_SQL = load_queries(Path(__file__).with_name("projections.sql"))
_live = msgspec.json.Decoder(LiveSummary)
LAST_MOMENT: Micros = LAST_ID
_PLAIN_COLUMNS: dict[str, Callable[[list[Any]], str]] = {
    "tenant": format_numbers,
    "path": format_texts,
    "status": format_texts,
    "last_seq": format_numbers,
    "started_at": format_numbers,
    "updated_at": format_numbers,
    "ended_at": format_numbers,
    "error": format_texts,
    "steps": format_numbers,
    "recovered": format_numbers,
    "state_hash": format_texts,
}


class ProjectionsPostgres:
    def __init__(self, database: Database, time_slice_s: float | None = None) -> None:
        """`time_slice_s`: seconds of computing before other tasks get a turn."""
        self._main = database.main
        self._background = database.background
        self._time_slice_s = time_slice_s

    async def write_projections(self, batch: list[ShardRows]) -> list[bool]:
        rows: list[Projection] = []
        for shard_rows in batch:
            if any(row.shard != shard_rows.shard for row in shard_rows.rows):
                raise NoetlError("a projection of another shard")
            rows += shard_rows.rows
        columns = await self._encode_columns(rows)
        (answer,) = await self._background.write(
            _SQL["write_projections"],
            shard=format_numbers([shard_rows.shard for shard_rows in batch]),
            epoch=format_numbers([shard_rows.epoch for shard_rows in batch]),
            checkpoint=format_numbers([shard_rows.checkpoint for shard_rows in batch]),
            **columns,
        )
        if answer["ahead"] is not None:
            raise NoetlError(f"projection of {answer['ahead']} is ahead of the log")
        return [shard_rows.shard in answer["shards"] for shard_rows in batch]

    async def _encode_columns(self, rows: list[Projection]) -> dict[str, Any]:
        time_slice = TimeSlice(self._time_slice_s)
        columns: dict[str, Any] = {
            "of_shard": format_numbers([row.shard for row in rows]),
            "exec": format_texts([row.execution_id for row in rows]),
            "parent": format_texts([row.parent for row in rows]),
            "retry_of": format_texts([row.retry_of for row in rows]),
        }
        columns["live"] = format_documents([_encode_live(row) for row in rows])
        columns["waiting"] = "{" + ",".join(str(row.waiting) for row in rows) + "}"
        for name, write in _PLAIN_COLUMNS.items():
            await time_slice.pause_if_used_up()
            columns[name] = write([getattr(row, name) for row in rows])
        states: list[bytes | None] = []
        for row in rows:
            await time_slice.pause_if_used_up()
            states.append(None if row.state is None else compress_state(row.state))
        columns["state"] = states
        return columns

    async def read_projection(self, execution_id: ExecutionId) -> Projection | None:
        rows = await self._main.read(_SQL["read_projection"], execution_id=int(execution_id))
        return _decode_projection(rows[0]) if rows else None

    async def list_executions(
        self,
        tenant: Tenant,
        wanted: ExecutionFilter,
        before: ExecutionId | None,
        limit: int,
    ) -> list[Projection]:
        arguments = make_list_arguments(tenant, wanted, before, limit)
        rows = await self._main.read(_SQL["list_executions"], **arguments)
        return [_decode_projection(row) for row in rows]

    async def find_walk_end(
        self,
        tenant: Tenant,
        wanted: ExecutionFilter,
        before: ExecutionId | None,
    ) -> WalkEnd:
        path = _split_path(wanted.path)["path"]
        (row,) = await self._main.read(
            _SQL["find_walk_end"],
            tenant=tenant,
            walk=choose_walk(wanted),
            **_make_lane_columns(wanted),
            **_make_window(wanted, before, MAX_START_DELAY_MICROS),
            path=path,
            parent=to_number(wanted.parent),
            walked=MAX_WALKED_ROWS,
        )
        last = None if row["last"] is None else to_execution_id(row["last"])
        return WalkEnd(row["looked_at"], last)

    async def count_executions(
        self,
        tenant: Tenant,
        wanted: ExecutionFilter,
    ) -> dict[str, StatusCount]:
        arguments = make_count_arguments(tenant, wanted)
        rows = await self._main.read(_SQL["count_executions"], **arguments)
        return {
            row["status"]: StatusCount(
                min(row["found"], MAX_COUNTED_ROWS),
                row["looked"] > MAX_COUNTED_ROWS,
            )
            for row in rows
        }

    async def make_histogram(
        self,
        tenant: Tenant,
        wanted: ExecutionFilter,
        end: Micros,
        buckets: int,
    ) -> Histogram:
        arguments = make_histogram_arguments(tenant, wanted, end, buckets)
        rows = await self._main.read(_SQL["make_histogram"], **arguments)
        by_status = {status: [0] * buckets for status in STATUSES}
        for row in rows:
            if row["status"] is not None:
                bucket = min(max(row["bucket"], 0), buckets - 1)
                by_status[row["status"]][bucket] += row["found"]
        back = rows[0]["back"]
        oldest = None if back is None else get_creation_time(str(back))
        return Histogram(rows[0]["start_ms"], rows[0]["width_ms"], by_status, oldest)

    async def list_retries(self, execution_id: ExecutionId) -> list[ExecutionId]:
        rows = await self._main.read(
            _SQL["list_retries"],
            execution_id=int(execution_id),
            limit=MAX_LISTED_RETRIES,
        )
        return [to_execution_id(row["execution_id"]) for row in rows]

    async def count_children(self, parent: ExecutionId) -> dict[str, int]:
        rows = await self._main.read(_SQL["count_children"], parent=int(parent))
        return {row["status"]: row["count"] for row in rows}

    async def read_checkpoint(self, shard: int) -> int:
        rows = await self._background.read(_SQL["read_checkpoint"], shard=shard)
        return read_seq(rows)


def make_list_arguments(
    tenant: Tenant, wanted: ExecutionFilter, before: ExecutionId | None, limit: int
) -> dict[str, Any]:
    return {
        "tenant": tenant,
        "walk": choose_walk(wanted),
        **_make_lane_columns(wanted),
        **_make_window(wanted, before, MAX_START_DELAY_MICROS),
        **_split_path(wanted.path),
        "walked": MAX_WALKED_ROWS,
        "since": wanted.since or 0,
        "until": LAST_MOMENT if wanted.until is None else wanted.until,
        "statuses": list(wanted.statuses) or None,
        "parent": to_number(wanted.parent),
        "waiting": wanted.waiting,
        "text": wanted.text.lower() or None,
        "words": list(wanted.words),
        "roots": wanted.roots,
        "limit": limit,
    }


def make_count_arguments(tenant: Tenant, wanted: ExecutionFilter) -> dict[str, Any]:
    return {
        "tenant": tenant,
        "walk": choose_walk(wanted),
        "lane_status": [*STATUSES, "waiting"],
        **_make_window(wanted, None, 0),
        **_split_path(wanted.path),
        "roots": wanted.roots,
        "walked": MAX_COUNTED_ROWS + 1,
    }


def make_histogram_arguments(
    tenant: Tenant, wanted: ExecutionFilter, end: Micros, buckets: int
) -> dict[str, Any]:
    return {
        "tenant": tenant,
        "walk": choose_walk(wanted),
        "lane_status": list(STATUSES),
        **_make_window(wanted, None, 0),
        **_split_path(wanted.path),
        "roots": wanted.roots,
        "walked": MAX_HISTOGRAM_ROWS,
        "start_ms": None if wanted.since is None else wanted.since // 1_000,
        "end_ms": end // 1_000,
        "buckets": buckets,
    }


def _make_window(
    wanted: ExecutionFilter, before: ExecutionId | None, start_delay: Micros
) -> dict[str, int]:
    """The ids [floor, ceiling) among which executions of the window are."""
    floor = 0
    if wanted.since is not None:
        floor = get_first_id(wanted.since - start_delay)
    ceiling = LAST_ID if before is None else int(before)
    if wanted.until is not None:
        ceiling = min(ceiling, get_first_id(wanted.until))
    return {"floor": floor, "ceiling": ceiling}


def _make_lane_columns(wanted: ExecutionFilter) -> dict[str, Any]:
    lanes = make_lanes(wanted)
    return {
        "lane_status": [lane.status for lane in lanes],
        "lane_low": [lane.low for lane in lanes],
        "lane_high": [lane.high for lane in lanes],
    }


def _split_path(path: str | None) -> dict[str, str | None]:
    """The path, or the LIKE pattern of a path with wildcards."""
    if path is None or not has_wildcard(path):
        return {"path": path, "pattern": None}
    escaped = re.sub(r"([\\%_])", r"\\\1", path)
    return {"path": None, "pattern": escaped.replace("*", "%")}


def _encode_live(row: Projection) -> str | None:
    return None if row.live is None else codec.encode(row.live).decode()


def _decode_projection(row: Record) -> Projection:
    columns = dict(row)
    if columns["live"] is not None:
        columns["live"] = _live.decode(columns["live"])
    if columns["state"] is not None:
        columns["state"] = decompress_state(columns["state"])
    for name in ("execution_id", "parent", "retry_of"):
        if columns[name] is not None:
            columns[name] = to_execution_id(columns[name])
    return Projection(**columns)
