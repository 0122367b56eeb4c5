"""Schedules and hooks in Postgres.

The methods that the duty calls use the background pool.
"""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from noetl.model import codec
from noetl.model.ids import ExecutionId, Micros, Tenant, shard_of
from noetl.postgres.pool import Database, Record
from noetl.postgres.queries import Query, load_queries
from noetl.triggers.port import (
    DueSchedule,
    Hook,
    HookDefinition,
    Rule,
    Schedule,
    ScheduleDefinition,
    ScheduledStart,
)

_SCHEDULES = load_queries(Path(__file__).with_name("schedules.sql"))
_HOOKS = load_queries(Path(__file__).with_name("hooks.sql"))
_RULE_DECODER = msgspec.json.Decoder(Rule)


class SchedulesPostgres:
    def __init__(self, database: Database, shards: int) -> None:
        self._main = database.main
        self._background = database.background
        self._shards = shards

    async def put_schedule(self, wanted: ScheduleDefinition, next_at: Micros) -> Schedule:
        row = await self._update_schedule(
            _SCHEDULES["put"],
            tenant=wanted.tenant,
            name=wanted.name,
            path=wanted.path,
            version=wanted.version,
            rule=codec.encode(wanted.rule).decode(),
            payload=codec.encode(wanted.payload).decode(),
            catch_up=wanted.catch_up,
            overlap=wanted.overlap,
            next_at=next_at,
        )
        assert row is not None
        return row

    async def find_schedule(self, tenant: Tenant, name: str) -> Schedule | None:
        rows = await self._main.read(_SCHEDULES["find"], tenant=tenant, name=name)
        if not rows:
            return None
        return _make_schedule(rows[0])

    async def list_schedules(
        self, tenant: Tenant, after: str = "", limit: int = 100
    ) -> list[Schedule]:
        rows = await self._main.read(_SCHEDULES["stored"], tenant=tenant, after=after, limit=limit)
        return [_make_schedule(row) for row in rows]

    async def pause(self, tenant: Tenant, name: str) -> Schedule | None:
        return await self._update_schedule(_SCHEDULES["pause"], tenant=tenant, name=name)

    async def resume(
        self,
        tenant: Tenant,
        name: str,
        next_at: Micros | None,
    ) -> Schedule | None:
        return await self._update_schedule(
            _SCHEDULES["resume"], tenant=tenant, name=name, next_at=next_at
        )

    async def delete(self, tenant: Tenant, name: str) -> bool:
        rows = await self._main.write(_SCHEDULES["delete"], tenant=tenant, name=name)
        return bool(rows)

    async def list_due(self, limit: int) -> list[DueSchedule]:
        rows = await self._background.read(_SCHEDULES["due"], limit=limit)
        return [DueSchedule(_make_schedule(row), row["now"], row["busy"]) for row in rows]

    async def commit_turn(self, after: Schedule, starts: Sequence[ScheduledStart]) -> bool:
        messages = [start for start, _ in starts]
        last_execution = None
        if after.last_execution is not None:
            last_execution = int(after.last_execution)
        (row,) = await self._background.write(
            _SCHEDULES["move"],
            schedule_id=after.schedule_id,
            revision=after.revision,
            next_at=after.next_at,
            waiting=list(after.waiting),
            skipped=after.skipped,
            last_at=after.last_at,
            last_execution=last_execution,
            error=after.error,
            executions=[int(start.execution_id) for start in messages],
            shards=[shard_of(start.execution_id, self._shards) for start in messages],
            tenants=[start.tenant for start in messages],
            keys=[start.stored_key for start in messages],
            playbooks=[start.playbook for start in messages],
            workloads=[codec.encode(workload).decode() for _, workload in starts],
            bodies=[codec.encode(start) for start in messages],
        )
        return bool(row["moved"])

    async def _update_schedule(self, query: Query, **values: object) -> Schedule | None:
        """Run a query that changes one schedule, and read the schedule."""
        rows = await self._main.write(query, **values)
        tenant = values["tenant"]
        name = values["name"]
        assert isinstance(tenant, int)
        assert isinstance(name, str)
        if not rows:
            return None
        return await self.find_schedule(Tenant(tenant), name)


def _make_schedule(row: Record) -> Schedule:
    """A row as a schedule.

    All queries have the same order of columns. The one of due schedules adds two at the end.
    """
    last_execution = None
    if row[14] is not None:
        last_execution = ExecutionId(str(row[14]))
    return Schedule(
        tenant=Tenant(row[0]),
        name=row[1],
        path=row[2],
        version=row[3],
        rule=_RULE_DECODER.decode(row[4]),
        payload=msgspec.json.decode(row[5]),
        catch_up=row[6],
        overlap=row[7],
        schedule_id=row[8],
        paused=row[9],
        next_at=row[10],
        waiting=tuple(row[11]),
        skipped=row[12],
        last_at=row[13],
        last_execution=last_execution,
        error=row[15],
        revision=row[16],
        created_at=row[17],
        changed_at=row[18],
    )


class HooksPostgres:
    def __init__(self, database: Database) -> None:
        self._pool = database.main

    async def put_hook(self, call: HookDefinition) -> Hook:
        fields = msgspec.structs.asdict(call)
        (row,) = await self._pool.write(_HOOKS["put"], **fields)
        return _make_hook(row)

    async def find_hook(self, tenant: Tenant, name: str) -> Hook | None:
        rows = await self._pool.read(_HOOKS["find"], tenant=tenant, name=name)
        if not rows:
            return None
        return _make_hook(rows[0])

    async def list_hooks(
        self,
        tenant: Tenant,
        after: str = "",
        limit: int = 100,
    ) -> list[Hook]:
        rows = await self._pool.read(_HOOKS["stored"], tenant=tenant, after=after, limit=limit)
        return [_make_hook(row) for row in rows]

    async def delete(self, tenant: Tenant, name: str) -> bool:
        rows = await self._pool.write(_HOOKS["delete"], tenant=tenant, name=name)
        return bool(rows)


def _make_hook(row: Record) -> Hook:
    return Hook(
        tenant=Tenant(row[0]),
        name=row[1],
        path=row[2],
        version=row[3],
        into=row[4],
        secret=row[5],
        signature_header=row[6],
        key_header=row[7],
        hook_id=row[8],
        created_at=row[9],
        changed_at=row[10],
    )
