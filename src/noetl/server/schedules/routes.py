"""Routes for schedules: add, list, read, pause, resume, delete, and show the next slots."""

from typing import Annotated, Any

from fastapi import Path, Query, Response
from pydantic import Field

from noetl.server.http import shapes
from noetl.server.http.bodies import DeletedView, Limit, RequestBody, View, make_router
from noetl.server.http.depends import Has, Who
from noetl.triggers.port import CatchUp, Overlap

routes = make_router("schedules")

Name = Annotated[str, Path(max_length=100, description="of a schedule", examples=["nightly"])]


class ScheduleBody(RequestBody):
    """Either `cron` (with a `timezone`) or `every`."""

    name: str = Field(max_length=100, examples=["nightly"])
    path: str = Field(
        max_length=200, description="a playbook of the catalog", examples=["examples/hello"]
    )
    version: int | None = Field(
        default=None, ge=1, le=1 << 31, description="null: the latest at each slot"
    )
    cron: str | None = Field(default=None, max_length=200, examples=["0 2 * * *"])
    timezone: str | None = Field(default=None, max_length=100, examples=["Europe/Berlin"])
    every: str | None = Field(
        default=None, max_length=20, description="100ms, 2s, 5m, 2h, 1d", examples=["15m"]
    )
    payload: dict[str, Any] = Field(default={}, description="merged over the playbook's workload")
    catch_up: CatchUp = Field(default="last", description="of slots that came while no server ran")
    overlap: Overlap = Field(default="allow", description="when the execution before has not ended")


class ScheduleView(View):
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
    last_at: str | None = Field(description="the last slot that was taken")
    last_execution: str | None
    waiting: list[str] = Field(
        description="slots that start when the execution before them has ended"
    )
    skipped: int = Field(description="slots passed over because the execution before them ran")
    error: str | None = Field(description="why the last slot started nothing")
    created_at: str
    changed_at: str


class KeptView(ScheduleView):
    created: bool = Field(description="false: one of this name was replaced")


class SchedulesView(View):
    schedules: list[ScheduleView]
    next: str | None = Field(description="the `after` of the next page")


class UpcomingView(View):
    name: str
    slots: list[str] = Field(description="in the schedule's time zone")


@routes.post("/api/schedules", status_code=201)
async def add_schedule(body: ScheduleBody, response: Response, has: Has, who: Who) -> KeptView:
    """Store a schedule (201); one of the same name is replaced (200) and goes on from now."""
    added = await has.schedules.add(who, **dict(body))
    response.status_code = 201 if added.created else 200
    return KeptView(**shapes.dump_schedule(added.schedule), created=added.created)


@routes.get("/api/schedules")
async def list_schedules(
    has: Has, who: Who, after: Annotated[str, Query(max_length=100)] = "", limit: Limit = 100
) -> SchedulesView:
    """All schedules, sorted by name."""
    rows = await has.schedules.list_page(who, after, limit)
    schedules = [ScheduleView(**shapes.dump_schedule(row)) for row in rows]
    following = rows[-1].name if len(rows) == limit else None
    return SchedulesView(schedules=schedules, next=following)


@routes.get("/api/schedules/{name}")
async def get_schedule(name: Name, has: Has, who: Who) -> ScheduleView:
    """What the schedule starts, when, and its last slot."""
    return ScheduleView(**shapes.dump_schedule(await has.schedules.get(who, name)))


@routes.get("/api/schedules/{name}/next")
async def next_slots(
    name: Name, has: Has, who: Who, count: Annotated[int, Query(ge=1, le=100)] = 5
) -> UpcomingView:
    """The next slots of the schedule, even if it is paused."""
    slots = await has.schedules.list_upcoming(who, name, count)
    return UpcomingView(name=name, slots=slots)


@routes.post("/api/schedules/{name}/pause")
async def pause_schedule(name: Name, has: Has, who: Who) -> ScheduleView:
    """Start nothing until the schedule is resumed. Executions that run go on."""
    return ScheduleView(**shapes.dump_schedule(await has.schedules.pause(who, name)))


@routes.post("/api/schedules/{name}/resume")
async def resume_schedule(name: Name, has: Has, who: Who) -> ScheduleView:
    """Go on from now. Slots that came during the pause are not caught up."""
    return ScheduleView(**shapes.dump_schedule(await has.schedules.resume(who, name)))


@routes.delete("/api/schedules/{name}")
async def delete_schedule(name: Name, has: Has, who: Who) -> DeletedView:
    """Delete a schedule. Executions that it has started go on."""
    await has.schedules.delete(who, name)
    return DeletedView(name=name)
