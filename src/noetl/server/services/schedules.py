"""Schedules as people keep them. One that is stored can fire: its rule names moments, its playbook takes its payload."""

import re
from dataclasses import dataclass
from typing import Any

from noetl.model.clock import Clock
from noetl.model.errors import InvalidInput, NotFound
from noetl.model.identity import Identity
from noetl.model.ids import ExecutionId, Micros
from noetl.playbook import durations
from noetl.server.playbooks import Playbooks
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


@dataclass(frozen=True, slots=True)
class Kept:
    schedule: Schedule
    created: bool  # False: one of this name was replaced


class ScheduleService:
    def __init__(self, schedules: Schedules, playbooks: Playbooks, clock: Clock) -> None:
        self._schedules = schedules
        self._playbooks = playbooks
        self._clock = clock

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
    ) -> Kept:
        """In place of the one of this name, if there is one."""
        check_name(name, "schedule")
        now = self._clock.now()
        rule = rule_of(cron, timezone, every, now)
        entry = await self._playbooks.find(path, version, identity.tenant)
        await self._playbooks.workload(
            entry, ExecutionId("0"), payload
        )  # what cannot start is said now
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
        known = await self._schedules.find(identity.tenant, name)
        first = calendar.following(rule, now)
        if first is None:
            raise InvalidInput(f"{cron!r} does not come any more")
        return Kept(await self._schedules.put(wanted, first), known is None)

    async def page(self, identity: Identity, after: str = "", limit: int = 100) -> list[Schedule]:
        """By name."""
        return await self._schedules.stored(identity.tenant, after, limit)

    async def get(self, identity: Identity, name: str) -> Schedule:
        return _there(await self._schedules.find(identity.tenant, name), name)

    async def pause(self, identity: Identity, name: str) -> Schedule:
        return _there(await self._schedules.pause(identity.tenant, name), name)

    async def resume(self, identity: Identity, name: str) -> Schedule:
        """From now on: what came meanwhile was not wanted."""
        found = await self.get(identity, name)
        next_at = (
            calendar.following(found.rule, self._clock.now()) if found.paused else found.next_at
        )
        return _there(await self._schedules.resume(identity.tenant, name, next_at), name)

    async def delete(self, identity: Identity, name: str) -> None:
        if not await self._schedules.delete(identity.tenant, name):
            raise _missing(name)

    async def upcoming(self, identity: Identity, name: str, count: int) -> list[str]:
        """Its next slots, in its own time zone."""
        rule = (await self.get(identity, name)).rule
        return [
            calendar.local(rule, slot) for slot in calendar.upcoming(rule, self._clock.now(), count)
        ]


def rule_of(cron: str | None, timezone: str | None, every: str | None, now: Micros) -> Rule:
    if (cron is None) == (every is None):
        raise InvalidInput(
            "a schedule is either cron or an interval",
            hint="cron '0 2 * * *' is daily at two; every 15m is an interval",
        )
    try:
        if every is not None:
            if timezone is not None:
                raise ValueError("an interval has no time zone: it is the same everywhere")
            rule: Rule = Every(durations.micros(every), now)
        else:
            rule = Cron(cron or "", timezone or "UTC")
        calendar.check(rule)
    except ValueError as error:
        raise InvalidInput(str(error)) from error
    return rule


def check_name(name: str, kind: str) -> None:
    if not _NAME.fullmatch(name):
        raise InvalidInput(
            f"{name[:100]!r} cannot be the name of a {kind}",
            hint="letters, digits, '_', '-', '.', at most 100; a letter, digit or '_' first",
        )


def _there(found: Schedule | None, name: str) -> Schedule:
    if found is None:
        raise _missing(name)
    return found


def _missing(name: str) -> NotFound:
    return NotFound(
        f"there is no schedule {name!r}", hint="noetl schedule list shows those there are"
    )
