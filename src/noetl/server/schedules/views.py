"""The structs that answers about schedules have."""

from typing import Annotated, Any

from noetl.model.clock import format_iso, format_iso_or_none
from noetl.playbook import durations
from noetl.server.http.structs import View, describe
from noetl.triggers.port import CatchUp, Cron, Overlap, Schedule


class ScheduleView(View, frozen=True):
    name: str
    path: str
    version: int | None
    cron: str | None
    timezone: str | None
    every: str | None
    payload: dict[str, Any]
    catch_up: CatchUp
    overlap: Overlap
    paused: bool
    next_at: str | None
    last_at: Annotated[str | None, describe("the last slot that was taken")]
    last_execution: str | None
    waiting: Annotated[
        list[str], describe("slots that start when the execution before them has ended")
    ]
    skipped: Annotated[int, describe("slots passed over because the execution before them ran")]
    error: Annotated[str | None, describe("why the last slot started nothing")]
    created_at: str
    changed_at: str


class KeptView(ScheduleView, frozen=True):
    created: Annotated[bool, describe("false: one of this name was replaced")]


class SchedulesView(View, frozen=True):
    schedules: list[ScheduleView]
    next: Annotated[str | None, describe("the `after` of the next page")]


class UpcomingView(View, frozen=True):
    name: str
    slots: Annotated[list[str], describe("in the schedule's time zone")]


def make_schedule_view(row: Schedule) -> ScheduleView:
    cron, timezone, every = None, None, None
    if isinstance(row.rule, Cron):
        cron, timezone = row.rule.expression, row.rule.zone
    else:
        every = durations.write_duration(row.rule.interval)
    return ScheduleView(
        name=row.name,
        path=row.path,
        version=row.version,
        cron=cron,
        timezone=timezone,
        every=every,
        payload=row.payload,
        catch_up=row.catch_up,
        overlap=row.overlap,
        paused=row.paused,
        next_at=format_iso_or_none(row.next_at),
        last_at=format_iso_or_none(row.last_at),
        last_execution=row.last_execution,
        waiting=[format_iso(slot) for slot in row.waiting],
        skipped=row.skipped,
        error=row.error,
        created_at=format_iso(row.created_at),
        changed_at=format_iso(row.changed_at),
    )
