"""Routes for schedules: add, list, read, pause, resume, delete, and show the next slots."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from noetl.server.http.depends import Has, Who
from noetl.server.http.parameters import Limit, PathParameter, QueryParameter
from noetl.server.http.routing import Reply, Routes
from noetl.server.http.structs import (
    DeletedView,
    LongText,
    RequestBody,
    ShortText,
    VersionNumber,
    describe,
)
from noetl.server.schedules.views import KeptView, SchedulesView, ScheduleView, UpcomingView
from noetl.triggers.port import CatchUp, Overlap

routes = Routes("schedules")

Name = Annotated[str, PathParameter("of a schedule", max_length=100, examples=["nightly"])]


class ScheduleBody(RequestBody, frozen=True):
    """Either `cron` (with a `timezone`) or `every`."""

    name: Annotated[str, describe(example="nightly", max_length=100)]
    path: Annotated[
        str, describe("a playbook of the catalog", example="examples/hello", max_length=200)
    ]
    version: Annotated[VersionNumber | None, describe("null: the latest at each slot")] = None
    cron: Annotated[LongText | None, describe(example="0 2 * * *")] = None
    timezone: Annotated[ShortText | None, describe(example="Europe/Berlin")] = None
    every: Annotated[
        Annotated[str, Meta(max_length=20)] | None, describe("100ms, 2s, 5m, 2h, 1d", example="15m")
    ] = None
    payload: Annotated[dict[str, Any], describe("merged over the playbook's workload")] = {}
    catch_up: Annotated[CatchUp, describe("of slots that came while no server ran")] = "last"
    overlap: Annotated[Overlap, describe("when the execution before has not ended")] = "allow"


@routes.post("/api/schedules", status=201)
async def add_schedule(body: ScheduleBody, has: Has, who: Who) -> Reply[KeptView]:
    """Store a schedule (201); one of the same name is replaced (200) and goes on from now."""
    kept = await has.schedules.add(who, **msgspec.structs.asdict(body))
    return Reply(kept, 201 if kept.created else 200)


@routes.get("/api/schedules")
async def list_schedules(
    has: Has,
    who: Who,
    after: Annotated[str, QueryParameter(max_length=100)] = "",
    limit: Limit = 100,
) -> SchedulesView:
    """All schedules, sorted by name."""
    return await has.schedules.list_page(who, after, limit)


@routes.get("/api/schedules/{name}")
async def get_schedule(name: Name, has: Has, who: Who) -> ScheduleView:
    """What the schedule starts, when, and its last slot."""
    return await has.schedules.get(who, name)


@routes.get("/api/schedules/{name}/next")
async def next_slots(
    name: Name, has: Has, who: Who, count: Annotated[int, QueryParameter(ge=1, le=100)] = 5
) -> UpcomingView:
    """The next slots of the schedule, even if it is paused."""
    return await has.schedules.list_upcoming(who, name, count)


@routes.post("/api/schedules/{name}/pause")
async def pause_schedule(name: Name, has: Has, who: Who) -> ScheduleView:
    """Start nothing until the schedule is resumed. Executions that run go on."""
    return await has.schedules.pause(who, name)


@routes.post("/api/schedules/{name}/resume")
async def resume_schedule(name: Name, has: Has, who: Who) -> ScheduleView:
    """Go on from now. Slots that came during the pause are not caught up."""
    return await has.schedules.resume(who, name)


@routes.delete("/api/schedules/{name}")
async def delete_schedule(name: Name, has: Has, who: Who) -> DeletedView:
    """Delete a schedule. Executions that it has started go on."""
    return await has.schedules.delete(who, name)
