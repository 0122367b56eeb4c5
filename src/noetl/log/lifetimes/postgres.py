"""The lifetimes in Postgres."""

from pathlib import Path
from typing import Any

from noetl.log.columns import to_execution_id
from noetl.log.lifetimes.port import JudgedCounts, ReferenceLife, StepKey, StorageUsage
from noetl.model.ids import ExecutionId, Micros, RefId
from noetl.model.reference import Lifetime
from noetl.postgres.pool import Database, Record
from noetl.postgres.queries import load_queries

_SQL = load_queries(Path(__file__).with_name("lifetimes.sql"))
MAX_EXPIRED_REFS = 5_000  # references that expire in one run


class LifetimesPostgres:
    def __init__(self, database: Database) -> None:
        self._main = database.main
        self._background = database.background

    async def expire_results(
        self, grace: Micros, retention: Micros | None, limit: int
    ) -> JudgedCounts:
        (row,) = await self._background.write(
            _SQL["expire_results"],
            grace=grace,
            retention=retention,
            limit=limit,
            most=MAX_EXPIRED_REFS,
        )
        return JudgedCounts(**row)

    async def read_lifetimes(self, refs: list[RefId]) -> dict[RefId, ReferenceLife]:
        ref_ids = [int(ref_id) for ref_id in refs]
        rows = await self._main.read(_SQL["read_lifetimes"], refs=ref_ids)
        return {RefId(str(row["ref_id"])): _decode_life(row) for row in rows}

    async def pin_results(self, places: list[StepKey]) -> None:
        await self._main.write(_SQL["pin_results"], **_make_place_columns(places))

    async def unpin_results(self, places: list[StepKey]) -> None:
        await self._main.write(_SQL["unpin_results"], **_make_place_columns(places))

    async def list_pinned_steps(self, executions: list[ExecutionId]) -> list[StepKey]:
        rows = await self._main.read(
            _SQL["list_pinned_steps"], executions=[int(execution_id) for execution_id in executions]
        )
        return [StepKey(to_execution_id(row["execution_id"]), row["step"]) for row in rows]

    async def read_usage(self, executions: list[ExecutionId]) -> list[StorageUsage]:
        rows = await self._background.read(
            _SQL["read_usage"], executions=[int(execution_id) for execution_id in executions]
        )
        return [
            StorageUsage(
                to_execution_id(row["execution_id"]),
                row["tier"],
                row["count"],
                row["bytes"],
                row["expired"],
            )
            for row in rows
        ]


def _decode_life(row: Record) -> ReferenceLife:
    lifetime = None
    if row["scope"] is not None:
        lifetime = Lifetime(row["scope"], row["ttl"])
    return ReferenceLife(lifetime, row["expired_at"])


def _make_place_columns(places: list[StepKey]) -> dict[str, list[Any]]:
    return {
        "executions": [int(place.execution_id) for place in places],
        "steps": [place.step for place in places],
    }
