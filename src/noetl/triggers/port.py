"""The contracts of schedules and hooks.

A slot is a time at which a schedule is due. A slot starts one execution at most, however many
servers try: one transaction writes the start and moves the schedule to its next slot.
"""

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
    """A schedule as a user defines it."""

    tenant: Tenant
    name: str
    path: str
    version: int | None = None  # None: the latest at each slot
    rule: Rule
    payload: dict[str, Any] = {}
    catch_up: CatchUp = "last"
    overlap: Overlap = "allow"


class Schedule(ScheduleDefinition, frozen=True, kw_only=True):
    """A stored schedule: its definition and its state.

    `revision` grows with every change. A write names the revision that it is based on.
    """

    schedule_id: int
    paused: bool = False
    next_at: Micros | None  # None: its rule has no later slot
    waiting: tuple[Micros, ...] = ()  # slots that wait for a running execution (overlap: queue)
    skipped: int = 0  # number of slots skipped because of a running execution (overlap: skip)
    last_at: Micros | None = None
    last_execution: ExecutionId | None = None
    error: str | None = None  # why the last slot could not start anything
    revision: int = 0
    created_at: Micros
    changed_at: Micros


class DueSchedule(Struct, frozen=True):
    """A due schedule.

    `now` is the store's time. `busy` means that its last execution still runs.
    """

    schedule: Schedule
    now: Micros
    busy: bool


ScheduledStart = tuple[Start, dict[str, Any]]  # an execution to start, and its workload


class Schedules(Protocol):
    async def put_schedule(self, wanted: ScheduleDefinition, next_at: Micros) -> Schedule:
        """Create a schedule, or replace the definition of the one with this name.

        Its state stays.
        """
        ...

    async def find_schedule(self, tenant: Tenant, name: str) -> Schedule | None: ...
    async def list_schedules(
        self, tenant: Tenant, after: str = "", limit: int = 100
    ) -> list[Schedule]:
        """The schedules with names after `after`, by name."""
        ...

    async def pause(self, tenant: Tenant, name: str) -> Schedule | None: ...
    async def resume(
        self, tenant: Tenant, name: str, next_at: Micros | None
    ) -> Schedule | None: ...
    async def delete(self, tenant: Tenant, name: str) -> bool: ...

    async def list_due(self, limit: int) -> list[DueSchedule]:
        """The schedules that are not paused and have a slot that may start."""
        ...

    async def commit_turn(self, after: Schedule, starts: Sequence[ScheduledStart]) -> bool:
        """Store the state of `after` and start these executions, in one transaction.

        Does nothing and returns False if the stored revision is not the one of `after`.
        """
        ...


class HookDefinition(Struct, frozen=True, kw_only=True):
    """A hook as a user defines it: a call of the hook starts the playbook."""

    tenant: Tenant
    name: str
    path: str
    version: int | None = None
    into: str | None = None  # the workload key that gets the body; None: the body is the payload
    secret: str | None = None  # a stored credential; its field `secret` signs every call
    signature_header: str | None = None
    key_header: str | None = None  # its value identifies a call: a repeated call starts nothing


class Hook(HookDefinition, frozen=True, kw_only=True):
    hook_id: int
    created_at: Micros
    changed_at: Micros


class Hooks(Protocol):
    async def put_hook(self, call: HookDefinition) -> Hook:
        """Create a hook, or replace the definition of the one with this name."""
        ...

    async def find_hook(self, tenant: Tenant, name: str) -> Hook | None: ...
    async def list_hooks(
        self,
        tenant: Tenant,
        after: str = "",
        limit: int = 100,
    ) -> list[Hook]:
        """The hooks with names after `after`, by name."""
        ...

    async def delete(self, tenant: Tenant, name: str) -> bool: ...
