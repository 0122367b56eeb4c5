"""Routes for hooks: add, list, read, delete, and the call from outside that starts a playbook."""

from typing import Annotated

import msgspec
from starlette.requests import Request

from noetl.server.executions.views import StartedView
from noetl.server.hooks.views import HookedView, HooksView, HookView, UnhookedView
from noetl.server.http.bodies import decode_strict_json
from noetl.server.http.callers import find_caller
from noetl.server.http.depends import Has, Who
from noetl.server.http.parameters import Key, Limit, PathParameter, QueryParameter
from noetl.server.http.routing import Reply, Routes
from noetl.server.http.structs import RequestBody, ShortText, VersionNumber, describe
from noetl.server.tenants.routes import TenantName
from noetl.triggers.port import HookDefinition

routes = Routes("hooks")

Name = Annotated[str, PathParameter("of a hook", max_length=100, examples=["orders"])]


class HookBody(RequestBody, frozen=True):
    name: Annotated[str, describe(example="orders", max_length=100)]
    path: Annotated[
        str, describe("a playbook of the catalog", example="examples/hello", max_length=200)
    ]
    version: Annotated[VersionNumber | None, describe("null: the latest at each call")] = None
    into: Annotated[ShortText | None, describe("the workload key that gets the body")] = None
    secret: Annotated[
        ShortText | None, describe("a credential; its field `secret` signs calls")
    ] = None
    signature_header: Annotated[ShortText | None, describe(example="X-Hub-Signature-256")] = None
    key_header: Annotated[ShortText | None, describe(example="X-GitHub-Delivery")] = None


@routes.post("/api/hooks", status=201)
async def add_hook(body: HookBody, has: Has, who: Who) -> Reply[HookedView]:
    """Store a hook (201); one of the same name is replaced (200)."""
    definition = HookDefinition(tenant=who.tenant, **msgspec.structs.asdict(body))
    hooked = await has.hooks.add(who, definition)
    return Reply(hooked, 201 if hooked.created else 200)


@routes.get("/api/hooks")
async def list_hooks(
    has: Has,
    who: Who,
    after: Annotated[str, QueryParameter(max_length=100)] = "",
    limit: Limit = 100,
) -> HooksView:
    """All hooks, sorted by name."""
    return await has.hooks.list_page(who, after, limit)


@routes.get("/api/hooks/{name}")
async def get_hook(name: Name, has: Has, who: Who) -> HookView:
    """What a call of the hook starts, and which header identifies a call."""
    return await has.hooks.get(who, name)


@routes.post(
    "/api/hooks/{name}",
    status=202,
    public=True,  # the signature of the hook's secret stands for a token
    strict=False,  # unknown callers may add parameters of their own
    extra={
        "requestBody": {"content": {"application/json": {"schema": {}, "example": {"order": 7}}}}
    },
)
async def call_hook(name: Name, request: Request, has: Has, key: Key = None) -> StartedView:
    """Start the hook's playbook with the body. With an Idempotency-Key, or the header that the hook
    names, a repeat gives the same execution. 401 if the call is not signed as the hook asks; a hook
    without a secret needs a token of an operator."""
    body = await request.body()
    caller = await find_caller(request)
    return await has.hooks.call(caller, name, body, request.headers, decode_strict_json, key)


@routes.post(
    "/api/tenants/{tenant}/hooks/{name}",
    status=202,
    public=True,  # the signature of the hook's secret stands for a token
    strict=False,
    extra={
        "requestBody": {"content": {"application/json": {"schema": {}, "example": {"order": 7}}}}
    },
)
async def call_tenant_hook(
    tenant: TenantName, name: Name, request: Request, has: Has, key: Key = None
) -> StartedView:
    """Call a hook of a tenant: its address for callers without a token. As POST /api/hooks/NAME."""
    body = await request.body()
    caller = await find_caller(request)
    return await has.hooks.call(
        caller, name, body, request.headers, decode_strict_json, key, tenant
    )


@routes.delete("/api/hooks/{name}")
async def delete_hook(name: Name, has: Has, who: Who) -> UnhookedView:
    """Delete a hook. Executions that it has started go on."""
    return await has.hooks.delete(who, name)
