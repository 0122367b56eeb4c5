"""Routes for hooks: add, list, read, delete, and the call from outside that starts a playbook."""

from typing import Annotated

from fastapi import Path, Query, Request, Response
from pydantic import Field

from noetl.server.executions.routes import StartedView, make_started_view
from noetl.server.http import shapes
from noetl.server.http.bodies import (
    Key,
    Limit,
    OpenRoute,
    RequestBody,
    View,
    decode_strict_json,
    make_router,
)
from noetl.server.http.depends import Has, Who
from noetl.triggers.port import HookDefinition

routes = make_router("hooks")
calls = make_router("hooks", OpenRoute)

Name = Annotated[str, Path(max_length=100, description="of a hook", examples=["orders"])]


class HookBody(RequestBody):
    name: str = Field(max_length=100, examples=["orders"])
    path: str = Field(
        max_length=200, description="a playbook of the catalog", examples=["examples/hello"]
    )
    version: int | None = Field(
        default=None, ge=1, le=1 << 31, description="null: the latest at each call"
    )
    into: str | None = Field(
        default=None, max_length=100, description="the workload key that gets the body"
    )
    secret: str | None = Field(
        default=None, max_length=100, description="a credential; its field `secret` signs calls"
    )
    signature_header: str | None = Field(
        default=None, max_length=100, examples=["X-Hub-Signature-256"]
    )
    key_header: str | None = Field(default=None, max_length=100, examples=["X-GitHub-Delivery"])


class HookView(View):
    name: str
    path: str
    version: int | None
    into: str | None
    secret: str | None = Field(description="the name of a credential")
    signature_header: str | None
    key_header: str | None
    created_at: str
    changed_at: str


class HookedView(HookView):
    created: bool = Field(description="false: one of this name was replaced")


class HooksView(View):
    hooks: list[HookView]
    next: str | None = Field(description="the `after` of the next page")


class UnhookedView(View):
    name: str


@routes.post("/api/hooks", status_code=201)
async def add_hook(body: HookBody, response: Response, has: Has, who: Who) -> HookedView:
    """Store a hook (201); one of the same name is replaced (200)."""
    definition = HookDefinition(tenant=who.tenant, **dict(body))
    hooked = await has.hooks.add(who, definition)
    response.status_code = 201 if hooked.created else 200
    return HookedView(**shapes.dump_hook(hooked.hook), created=hooked.created)


@routes.get("/api/hooks")
async def list_hooks(
    has: Has, who: Who, after: Annotated[str, Query(max_length=100)] = "", limit: Limit = 100
) -> HooksView:
    """All hooks, sorted by name."""
    rows = await has.hooks.list_page(who, after, limit)
    hooks = [HookView(**shapes.dump_hook(row)) for row in rows]
    following = rows[-1].name if len(rows) == limit else None
    return HooksView(hooks=hooks, next=following)


@routes.get("/api/hooks/{name}")
async def get_hook(name: Name, has: Has, who: Who) -> HookView:
    """What a call of the hook starts, and which header identifies a call."""
    return HookView(**shapes.dump_hook(await has.hooks.get(who, name)))


@calls.post(
    "/api/hooks/{name}",
    status_code=202,
    openapi_extra={
        "requestBody": {"content": {"application/json": {"schema": {}, "example": {"order": 7}}}}
    },
)
async def call_hook(
    name: Name, request: Request, has: Has, who: Who, key: Key = None
) -> StartedView:
    """Start the hook's playbook with the body. With an Idempotency-Key, or the header that the hook
    names, a repeat gives the same execution. 401 if the call is not signed as the hook asks."""
    body = await request.body()
    started = await has.hooks.call(who, name, body, request.headers, decode_strict_json, key)
    return make_started_view(started)


routes.routes.extend(calls.routes)


@routes.delete("/api/hooks/{name}")
async def delete_hook(name: Name, has: Has, who: Who) -> UnhookedView:
    """Delete a hook. Executions that it has started go on."""
    await has.hooks.delete(who, name)
    return UnhookedView(name=name)
