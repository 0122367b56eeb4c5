"""Schedules and hooks in memory."""

from collections.abc import Sequence
from typing import Any, Protocol

from msgspec.structs import asdict, replace

from noetl.model.clock import Clock
from noetl.model.ids import ExecutionId, Micros, Tenant
from noetl.model.messages import Start
from noetl.triggers.port import (
    DueSchedule,
    Hook,
    HookDefinition,
    Schedule,
    ScheduleDefinition,
    ScheduledStart,
)


class StartLog(Protocol):
    """The memory twin of the log, which knows the executions."""

    async def find_tenant(self, execution_id: ExecutionId) -> Tenant | None: ...


class StartInbox(Protocol):
    """The memory twin of the inbox, which takes starts and knows which executions have ended."""

    async def start_execution(self, start: Start, workload: dict[str, Any]) -> ExecutionId: ...
    async def find_message(self, execution_id: ExecutionId, key: str) -> Any: ...


class SchedulesMemory:
    def __init__(self, log: StartLog, inbox: StartInbox, clock: Clock) -> None:
        self._log = log
        self._inbox = inbox
        self._clock = clock
        self._rows: dict[tuple[Tenant, str], Schedule] = {}
        self._made = 0

    async def put_schedule(self, wanted: ScheduleDefinition, next_at: Micros) -> Schedule:
        now = self._clock.now()
        before = self._rows.get((wanted.tenant, wanted.name))
        if before is None:
            self._made += 1
            before = Schedule(
                **asdict(wanted),
                schedule_id=self._made,
                next_at=next_at,
                created_at=now,
                changed_at=now,
                revision=-1,
            )
        row = replace(before, **asdict(wanted), next_at=next_at, error=None)
        return self._store_row(row)

    async def find_schedule(self, tenant: Tenant, name: str) -> Schedule | None:
        return self._rows.get((tenant, name))

    async def list_schedules(
        self, tenant: Tenant, after: str = "", limit: int = 100
    ) -> list[Schedule]:
        rows = [row for row in self._rows.values() if row.tenant == tenant and row.name > after]
        rows.sort(key=lambda row: row.name)
        return rows[:limit]

    async def pause(self, tenant: Tenant, name: str) -> Schedule | None:
        row = self._rows.get((tenant, name))
        if row is None:
            return None
        return self._store_row(replace(row, paused=True))

    async def resume(
        self,
        tenant: Tenant,
        name: str,
        next_at: Micros | None,
    ) -> Schedule | None:
        row = self._rows.get((tenant, name))
        if row is None:
            return None
        return self._store_row(replace(row, paused=False, next_at=next_at))

    async def delete(self, tenant: Tenant, name: str) -> bool:
        return self._rows.pop((tenant, name), None) is not None

    async def list_due(self, limit: int) -> list[DueSchedule]:
        now = self._clock.now()
        due: list[DueSchedule] = []
        rows = list(self._rows.values())
        rows.sort(key=lambda row: (row.next_at or 0, row.schedule_id))
        for row in rows:
            busy = await self._is_busy(row.last_execution)
            slot_has_come = row.next_at is not None and row.next_at <= now
            queued_may_start = row.waiting and not busy
            if not row.paused and (slot_has_come or queued_may_start):
                due.append(DueSchedule(row, now, busy))
        return due[:limit]

    async def commit_turn(self, after: Schedule, starts: Sequence[ScheduledStart]) -> bool:
        row = self._rows.get((after.tenant, after.name))
        if row is None or row.schedule_id != after.schedule_id:
            return False
        if row.revision != after.revision:
            return False
        self._store_row(replace(after, changed_at=row.changed_at), touch=False)
        for start, workload in starts:
            await self._inbox.start_execution(start, workload)
        return True

    def _store_row(self, row: Schedule, *, touch: bool = True) -> Schedule:
        changed = self._clock.now() if touch else row.changed_at
        row = replace(row, revision=row.revision + 1, changed_at=changed)
        self._rows[row.tenant, row.name] = row
        return row

    async def _is_busy(self, execution_id: ExecutionId | None) -> bool:
        if execution_id is None or await self._log.find_tenant(execution_id) is None:
            return False
        end = await self._inbox.find_message(execution_id, "terminal")
        return end.seq is None


class HooksMemory:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._rows: dict[tuple[Tenant, str], Hook] = {}
        self._made = 0

    async def put_hook(self, call: HookDefinition) -> Hook:
        now = self._clock.now()
        before = self._rows.get((call.tenant, call.name))
        if before is None:
            self._made += 1
            row = Hook(**asdict(call), hook_id=self._made, created_at=now, changed_at=now)
        else:
            row = replace(before, **asdict(call), changed_at=now)
        self._rows[call.tenant, call.name] = row
        return row

    async def find_hook(self, tenant: Tenant, name: str) -> Hook | None:
        return self._rows.get((tenant, name))

    async def list_hooks(
        self,
        tenant: Tenant,
        after: str = "",
        limit: int = 100,
    ) -> list[Hook]:
        rows = [row for row in self._rows.values() if row.tenant == tenant and row.name > after]
        rows.sort(key=lambda row: row.name)
        return rows[:limit]

    async def delete(self, tenant: Tenant, name: str) -> bool:
        return self._rows.pop((tenant, name), None) is not None
