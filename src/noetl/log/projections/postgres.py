"""The projections in Postgres."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from noetl.log.columns import read_seq, to_execution_id, to_number
from noetl.log.projections.port import ExecutionFilter, Projection, ShardRows, has_wildcard
from noetl.log.projections.stored_state import compress_state, decompress_state
from noetl.model.errors import NoetlError
from noetl.model.ids import ExecutionId, Tenant, get_first_id
from noetl.postgres.arrays import format_numbers, format_texts
from noetl.postgres.pool import Database, Record
from noetl.postgres.queries import load_queries
from noetl.time_slice import TimeSlice

_SQL = load_queries(Path(__file__).with_name("projections.sql"))
LAST_ID = (1 << 63) - 1
MAX_START_DELAY_MICROS = (
    7 * 86_400 * 1_000_000
)  # microseconds between making an execution's id and its start
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
        self, tenant: Tenant, wanted: ExecutionFilter, before: ExecutionId | None, limit: int
    ) -> list[Projection]:
        path, pattern = wanted.path, None
        if has_wildcard(wanted.path):
            path, pattern = None, _make_like_pattern(wanted.path)
        first_possible = 0
        if wanted.since is not None:
            first_possible = get_first_id(wanted.since - MAX_START_DELAY_MICROS)
        rows = await self._main.read(
            _SQL["list_executions"],
            tenant=tenant,
            status=wanted.status,
            path=path,
            pattern=pattern,
            roots=wanted.roots,
            floor=first_possible,
            parent=to_number(wanted.parent),
            since=wanted.since or 0,
            before=LAST_ID if before is None else int(before),
            limit=limit,
        )
        return [_decode_projection(row) for row in rows]

    async def count_children(self, parent: ExecutionId) -> dict[str, int]:
        rows = await self._main.read(_SQL["count_children"], parent=int(parent))
        return {row["status"]: row["count"] for row in rows}

    async def read_checkpoint(self, shard: int) -> int:
        rows = await self._background.read(_SQL["read_checkpoint"], shard=shard)
        return read_seq(rows)


def _make_like_pattern(path: str | None) -> str:
    """The LIKE pattern of a path with wildcards."""
    escaped = re.sub(r"([\\%_])", r"\\\1", path or "")
    return escaped.replace("*", "%")


def _decode_projection(row: Record) -> Projection:
    columns = dict(row)
    if columns["state"] is not None:
        columns["state"] = decompress_state(columns["state"])
    for name in ("execution_id", "parent", "retry_of"):
        if columns[name] is not None:
            columns[name] = to_execution_id(columns[name])
    return Projection(**columns)
