"""Starts what schedules ask for. Any number of servers may do it at once: a schedule is moved on by one of them."""

import logging

from msgspec.structs import replace

from noetl.model.clock import iso
from noetl.model.errors import InvalidInput, Unavailable
from noetl.model.ids import Micros
from noetl.server.duties.loop import Counts
from noetl.server.requests import Requests
from noetl.triggers.port import Begin, Due, Schedule, Schedules
from noetl.triggers.turns import turn

log = logging.getLogger(__name__)

SAID = "schedule"  # the workload key that tells an execution its slot


class Scheduler:
    name = "schedules"

    def __init__(self, schedules: Schedules, requests: Requests, limit: int) -> None:
        self._schedules = schedules
        self._requests = requests
        self._limit = limit

    async def run_once(self) -> Counts:
        due = await self._schedules.due(self._limit)
        done = 0
        for each in due:
            try:
                done += await self._turn(each)
            except Unavailable:
                raise
            except Exception:  # whatever is wrong with this one is not the others' fault
                log.exception("schedule failed", extra={"schedule": each.schedule.name})
        return Counts(done, left=done > 0)  # of one that has many slots behind it, some were taken

    async def _turn(self, due: Due) -> int:
        made = turn(due)
        if made.after == due.schedule:  # nothing can start, and no more can wait
            return 0
        after, starts = made.after, list[Begin]()
        try:
            starts = [await self._begin(due.schedule, slot) for slot in made.starts]
        except (
            InvalidInput
        ) as error:  # its playbook is gone or broken: said, and tried again at the next slot
            log.error(
                "schedule starts nothing", extra={"schedule": after.name, "error": str(error)}
            )
            after = replace(after, last_at=made.starts[-1], error=str(error))
        if starts:
            after = replace(
                after,
                last_at=made.starts[-1],
                last_execution=starts[-1][0].execution_id,
                error=None,
            )
        if not await self._schedules.move(after, starts):
            return 0
        for start, _ in starts:
            await self._requests.begun(start)
        return 1

    async def _begin(self, schedule: Schedule, slot: Micros) -> Begin:
        return await self._requests.prepare(
            schedule.path,
            version=schedule.version,
            payload={**schedule.payload, SAID: {"name": schedule.name, "slot": iso(slot)}},
            start_key=f"schedule:{schedule.schedule_id}:{slot}",
            by=f"schedule:{schedule.name}",
            tenant=schedule.tenant,
        )
