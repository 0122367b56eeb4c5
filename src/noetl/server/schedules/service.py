"""Schedules as people add and read them.

A schedule is validated before it is stored: its rule has slots, and its playbook takes its payload.
"""

import re
from typing import Any

from noetl.model.clock import Clock
from noetl.model.errors import InvalidInput, NotFound
from noetl.model.identity import Identity, Permission, needs
from noetl.model.ids import ExecutionId, Micros
from noetl.playbook import durations
from noetl.server.audit.recorder import AuditRecorder
from noetl.server.dispatch.playbooks import Playbooks
from noetl.server.http.structs import DeletedView, extend_view
from noetl.server.schedules.views import (
    KeptView,
    SchedulesView,
    ScheduleView,
    UpcomingView,
    make_schedule_view,
)
from noetl.triggers import calendar
from noetl.triggers.port import (
    CatchUp,
    Cron,
    Every,
    Overlap,
    Rule,
    Schedule,
    ScheduleDefinition,
    Schedules,
)

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,99}", re.ASCII)


class ScheduleService:
    def __init__(
        self, schedules: Schedules, playbooks: Playbooks, clock: Clock, *, audit: AuditRecorder
    ) -> None:
        self._schedules = schedules
        self._playbooks = playbooks
        self._clock = clock
        self._audit = audit

    @needs(Permission.WRITE)
    async def add(
        self,
        identity: Identity,
        name: str,
        path: str,
        *,
        version: int | None = None,
        cron: str | None = None,
        timezone: str | None = None,
        every: str | None = None,
        payload: dict[str, Any] | None = None,
        catch_up: CatchUp = "last",
        overlap: Overlap = "allow",
    ) -> KeptView:
        """Store a schedule; replaces the one of this name, if there is one."""
        check_trigger_name(name, "schedule")
        now = self._clock.now()
        rule = make_rule(cron, timezone, every, now)
        entry = await self._playbooks.find_catalog_entry(path, version, identity.tenant)
        await self._playbooks.make_workload(
            entry, identity.tenant, ExecutionId("0"), payload
        )  # raises if it cannot start
        wanted = ScheduleDefinition(
            tenant=identity.tenant,
            name=name,
            path=entry.path,
            version=version,
            rule=rule,
            payload=payload or {},
            catch_up=catch_up,
            overlap=overlap,
        )
        replaced = await self._schedules.find_schedule(identity.tenant, name)
        first_slot = calendar.find_next_slot(rule, now)
        if first_slot is None:
            raise InvalidInput(f"{cron!r} does not come any more")
        async with self._audit.record(
            identity, "schedule.add", name, path=entry.path, replaced=replaced is not None
        ):
            schedule = await self._schedules.put_schedule(wanted, first_slot)
        return extend_view(KeptView, make_schedule_view(schedule), created=replaced is None)

    @needs(Permission.READ)
    async def list_page(
        self, identity: Identity, after: str = "", limit: int = 100
    ) -> SchedulesView:
        """A page of schedules, sorted by name."""
        schedules = await self._schedules.list_schedules(identity.tenant, after, limit)
        following = schedules[-1].name if len(schedules) == limit else None
        return SchedulesView([make_schedule_view(each) for each in schedules], following)

    @needs(Permission.READ)
    async def get(self, identity: Identity, name: str) -> ScheduleView:
        return make_schedule_view(await self._find_schedule(identity, name))

    async def _find_schedule(self, identity: Identity, name: str) -> Schedule:
        return _require_schedule(await self._schedules.find_schedule(identity.tenant, name), name)

    @needs(Permission.OPERATE)
    async def pause(self, identity: Identity, name: str) -> ScheduleView:
        async with self._audit.record(identity, "schedule.pause", name):
            paused = await self._schedules.pause(identity.tenant, name)
            return make_schedule_view(_require_schedule(paused, name))

    @needs(Permission.OPERATE)
    async def resume(self, identity: Identity, name: str) -> ScheduleView:
        """Resume from now on; slots that came during the pause are dropped."""
        schedule = await self._find_schedule(identity, name)
        next_at = schedule.next_at
        if schedule.paused:
            next_at = calendar.find_next_slot(schedule.rule, self._clock.now())
        async with self._audit.record(identity, "schedule.resume", name):
            resumed = await self._schedules.resume(identity.tenant, name, next_at)
            return make_schedule_view(_require_schedule(resumed, name))

    @needs(Permission.WRITE)
    async def delete(self, identity: Identity, name: str) -> DeletedView:
        async with self._audit.record(identity, "schedule.delete", name):
            if not await self._schedules.delete(identity.tenant, name):
                raise _make_missing_schedule(name)
        return DeletedView(name)

    @needs(Permission.READ)
    async def list_upcoming(self, identity: Identity, name: str, count: int) -> UpcomingView:
        """The next slots of the schedule, in its own time zone."""
        schedule = await self._find_schedule(identity, name)
        slots = calendar.list_upcoming_slots(schedule.rule, self._clock.now(), count)
        return UpcomingView(name, [calendar.format_local_time(schedule.rule, at) for at in slots])


def make_rule(
    cron: str | None,
    timezone: str | None,
    every: str | None,
    now: Micros,
) -> Rule:
    """The rule of a schedule, from either `cron` or `every`. Raises `InvalidInput`."""
    if (cron is None) == (every is None):
        raise InvalidInput(
            "a schedule is either cron or an interval",
            hint="cron '0 2 * * *' is daily at two; every 15m is an interval",
        )
    try:
        if every is not None:
            if timezone is not None:
                raise ValueError("an interval has no time zone: it is the same everywhere")
            rule: Rule = Every(durations.parse_micros(every), now)
        else:
            rule = Cron(cron or "", timezone or "UTC")
        calendar.check_rule(rule)
    except ValueError as error:
        raise InvalidInput(str(error)) from error
    return rule


def check_trigger_name(name: str, kind: str) -> None:
    if not _NAME.fullmatch(name):
        raise InvalidInput(
            f"{name[:100]!r} cannot be the name of a {kind}",
            hint="letters, digits, '_', '-', '.', at most 100; a letter, digit or '_' first",
        )


def _require_schedule(found: Schedule | None, name: str) -> Schedule:
    if found is None:
        raise _make_missing_schedule(name)
    return found


def _make_missing_schedule(name: str) -> NotFound:
    return NotFound(
        f"there is no schedule {name!r}", hint="noetl schedule list shows those there are"
    )
