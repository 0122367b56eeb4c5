"""The contracts of schedules and hooks. A moment at which a schedule is due is a slot; a slot starts one execution at most,
whatever the number of servers that try: its start is written in the transaction that moves the schedule on."""

from collections.abc import Sequence
from typing import Any, Literal, Protocol

from msgspec import Struct

from noetl.model.ids import ExecutionId, Micros, Tenant
from noetl.model.messages import Start

CatchUp = Literal["skip", "last", "all"]
Overlap = Literal["allow", "skip", "queue"]


class Cron(Struct, frozen=True, tag="cron"):
    expression: str
    zone: str = "UTC"


class Every(Struct, frozen=True, tag="every"):
    interval: Micros
    anchor: Micros  # slots are whole intervals after it


Rule = Cron | Every


class ScheduleDefinition(Struct, frozen=True, kw_only=True):
    """What people say of a schedule."""

    tenant: Tenant
    name: str
    path: str
    version: int | None = None  # None: the latest at each slot
    rule: Rule
    payload: dict[str, Any] = {}
    catch_up: CatchUp = "last"
    overlap: Overlap = "allow"


class Schedule(ScheduleDefinition, frozen=True, kw_only=True):
    """And what has become of it. `revision` grows with every change: whoever writes says which one it has seen."""

    schedule_id: int
    paused: bool = False
    next_at: Micros | None  # None: its rule names no moment any more
    waiting: tuple[
        Micros, ...
    ] = ()  # slots that came while the execution before them ran (overlap: queue)
    skipped: int = 0  # slots that were passed over for that reason (overlap: skip)
    last_at: Micros | None = None
    last_execution: ExecutionId | None = None
    error: str | None = None  # why the last slot could not start anything
    revision: int = 0
    created_at: Micros
    changed_at: Micros


class Due(Struct, frozen=True):
    """`now` is the store's; `busy`: the last execution has not ended."""

    schedule: Schedule
    now: Micros
    busy: bool


Begin = tuple[Start, dict[str, Any]]  # an execution to be started, and its workload


class Schedules(Protocol):
    async def put(self, wanted: ScheduleDefinition, next_at: Micros) -> Schedule:
        """In place of one of this name: what has become of it stays, a pause too."""
        ...

    async def find(self, tenant: Tenant, name: str) -> Schedule | None: ...
    async def stored(
        self, tenant: Tenant, after: str = "", limit: int = 100
    ) -> list[Schedule]: ...  # by name
    async def pause(self, tenant: Tenant, name: str) -> Schedule | None: ...
    async def resume(
        self, tenant: Tenant, name: str, next_at: Micros | None
    ) -> Schedule | None: ...
    async def delete(self, tenant: Tenant, name: str) -> bool: ...

    async def due(self, limit: int) -> list[Due]:
        """Not paused, and their slot has come, or one waits and may start."""
        ...

    async def move(self, after: Schedule, starts: Sequence[Begin]) -> bool:
        """The row as `after` has it, and these executions, if its revision still is the one of `after`; else nothing."""
        ...


class HookDefinition(Struct, frozen=True, kw_only=True):
    """What people say of a hook: whoever calls it starts this playbook."""

    tenant: Tenant
    name: str
    path: str
    version: int | None = None
    into: str | None = None  # the workload key that gets the body; None: the body is the payload
    secret: str | None = None  # a stored credential; its field `secret` signs every call
    signature_header: str | None = None
    key_header: str | None = None  # names a call: one that is repeated starts nothing


class Hook(HookDefinition, frozen=True, kw_only=True):
    hook_id: int
    created_at: Micros
    changed_at: Micros


class Hooks(Protocol):
    async def put(self, call: HookDefinition) -> Hook: ...  # in place of one of this name
    async def find(self, tenant: Tenant, name: str) -> Hook | None: ...
    async def stored(
        self, tenant: Tenant, after: str = "", limit: int = 100
    ) -> list[Hook]: ...  # by name
    async def delete(self, tenant: Tenant, name: str) -> bool: ...
