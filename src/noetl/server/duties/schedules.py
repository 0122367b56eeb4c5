"""Starts executions of due schedules.

Several servers may do it at once: only one of them moves a schedule to its next slot.
"""

import logging

from msgspec.structs import replace

from noetl.model.clock import format_iso
from noetl.model.errors import InvalidInput, QuotaExceeded, Unavailable
from noetl.model.ids import Micros
from noetl.server.dispatch.requests import Requests
from noetl.server.duties.loop import Counts
from noetl.triggers.port import DueSchedule, Schedule, ScheduledStart, Schedules
from noetl.triggers.turns import decide_turn

log = logging.getLogger(__name__)

SLOT_WORKLOAD_KEY = "schedule"  # the workload key with the name and the slot of the schedule


class Scheduler:
    """The duty that starts executions of due schedules."""

    name = "schedules"

    def __init__(self, schedules: Schedules, requests: Requests, limit: int) -> None:
        self._schedules = schedules
        self._requests = requests
        self._limit = limit

    async def run_once(self) -> Counts:
        due_schedules = await self._schedules.list_due(self._limit)
        done = 0
        for due in due_schedules:
            try:
                done += await self._run_turn(due)
            except Unavailable:
                raise
            except Exception:  # the error of one schedule must not stop the others
                log.exception("schedule failed", extra={"schedule": due.schedule.name})
        # A schedule that is many slots late starts only some of them in one run.
        return Counts(done, has_more=done > 0)

    async def _run_turn(self, due: DueSchedule) -> int:
        """Start what is due and move the schedule on. Returns 1 if this server did it, else 0."""
        outcome = decide_turn(due)
        if outcome.after == due.schedule:  # nothing can start, and no more slots can wait
            return 0
        after = outcome.after
        starts: list[ScheduledStart] = []
        try:
            if outcome.starts:
                await self._requests.check_quotas(due.schedule.tenant)
            starts = [await self._prepare_start(due.schedule, slot) for slot in outcome.starts]
        except QuotaExceeded as error:
            await self._show_error(due.schedule, str(error))
            return 0
        except InvalidInput as error:
            # The playbook is gone or broken. The schedule shows the error and goes on.
            log.error(
                "schedule starts nothing", extra={"schedule": after.name, "error": str(error)}
            )
            after = replace(after, last_at=outcome.starts[-1], error=str(error))
        if starts:
            after = replace(
                after,
                last_at=outcome.starts[-1],
                last_execution=starts[-1][0].execution_id,
                error=None,
            )
        if not await self._schedules.commit_turn(after, starts):
            return 0
        for start, _ in starts:
            await self._requests.announce_start(start)
        return 1

    async def _show_error(self, schedule: Schedule, error: str) -> None:
        """Show why a slot waits. It stays due, and is started when its tenant has room."""
        if schedule.error != error:
            log.warning("schedule waits", extra={"schedule": schedule.name, "error": error})
            await self._schedules.commit_turn(replace(schedule, error=error), [])

    async def _prepare_start(self, schedule: Schedule, slot: Micros) -> ScheduledStart:
        """The start of one slot; its workload tells the execution which slot it is."""
        slot_entry = {"name": schedule.name, "slot": format_iso(slot)}
        return await self._requests.prepare(
            schedule.path,
            version=schedule.version,
            payload={**schedule.payload, SLOT_WORKLOAD_KEY: slot_entry},
            start_key=f"schedule:{schedule.schedule_id}:{slot}",
            by=f"schedule:{schedule.name}",
            tenant=schedule.tenant,
        )
