"""Routes for state between executions: values of a playbook that its next execution reads."""

from typing import Annotated, Any

from msgspec import Meta

from noetl.model.errors import InvalidInput
from noetl.model.playbook_state import MAX_STATE_VALUE_BYTES, MAX_STATE_VERSIONS
from noetl.server.http.depends import Has, Who
from noetl.server.http.parameters import HeaderParameter, Limit, PathParameter, QueryParameter
from noetl.server.http.routing import Reply, Routes
from noetl.server.http.structs import RequestBody, describe
from noetl.server.state.views import (
    StateHistoryView,
    StateOfPathView,
    StatePageView,
    StateUnsetView,
    StateView,
)

routes = Routes("state")

BookPath = Annotated[str, PathParameter("of the playbook", examples=["etl/orders"])]
StateName = Annotated[str, PathParameter(max_length=100, examples=["watermark"])]
IfMatch = Annotated[
    str | None, HeaderParameter('the version that must be there: "3"; "0": none', alias="If-Match")
]


class StateBody(RequestBody, frozen=True):
    value: Annotated[
        Any,
        describe(
            f"a scalar, or a map or list of scalars, up to {MAX_STATE_VALUE_BYTES} bytes",
            example=4711,
        ),
    ]
    expected_version: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        describe("write only if this version is there; 0: only if nobody has ever written it"),
    ] = None


@routes.get("/api/state")
async def list_state(
    has: Has,
    who: Who,
    after: Annotated[str, QueryParameter(max_length=400)] = "",
    limit: Limit = 100,
) -> StatePageView:
    """Values of all playbooks, sorted by path and name."""
    return await has.playbook_state.list_page(who, after, limit)


@routes.get("/api/state/values/{path:path}")
async def get_state_of_path(path: BookPath, has: Has, who: Who) -> StateOfPathView:
    """All values of a playbook, sorted by name."""
    return await has.playbook_state.list_state_values(who, path)


@routes.get("/api/state/value/{name}/{path:path}")
async def get_state_value(
    name: StateName,
    path: BookPath,
    has: Has,
    who: Who,
) -> Reply[StateView]:
    """One value; its version is the `ETag` too."""
    return _make_value_reply(await has.playbook_state.get(who, path, name))


@routes.put("/api/state/value/{name}/{path:path}")
async def put_state_value(
    name: StateName,
    path: BookPath,
    body: StateBody,
    has: Has,
    who: Who,
    if_match: IfMatch = None,
) -> Reply[StateView]:
    """Write a value; 409 if its version is not `expected_version` or `If-Match`. Running executions
    that have read the value fail when they write it (STATE_CONFLICT)."""
    expected = body.expected_version
    if if_match is not None:
        expected = _parse_version(if_match)
    value = await has.playbook_state.put(who, path, name, body.value, expected)
    return _make_value_reply(value)


@routes.delete("/api/state/value/{name}/{path:path}")
async def delete_state_value(
    name: StateName,
    path: BookPath,
    has: Has,
    who: Who,
    expected_version: Annotated[int | None, QueryParameter(ge=0, le=1 << 62)] = None,
    if_match: IfMatch = None,
) -> StateUnsetView:
    """Delete a value: templates find it undefined. Its history stays, and its version counts on."""
    if if_match is not None:
        expected_version = _parse_version(if_match)
    return await has.playbook_state.unset(who, path, name, expected_version)


@routes.get("/api/state/history/{name}/{path:path}")
async def get_state_history(
    name: StateName,
    path: BookPath,
    has: Has,
    who: Who,
    before: Annotated[
        int | None, QueryParameter("versions older than this one", ge=1, le=1 << 62)
    ] = None,
    limit: Annotated[int, QueryParameter(ge=1, le=MAX_STATE_VERSIONS)] = MAX_STATE_VERSIONS,
) -> StateHistoryView:
    """The last versions of a value, newest first, with the execution and event that wrote each."""
    return await has.playbook_state.read_history(who, path, name, before, limit)


def _make_value_reply(value: StateView) -> Reply[StateView]:
    return Reply(value, 200, {"ETag": f'"{value.version}"'})


def _parse_version(if_match: str) -> int:
    """The version that an `If-Match` header names."""
    text = if_match.strip().strip('"')
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise InvalidInput(
            f"If-Match: {if_match[:40]!r} is no version", hint='a number in quotes, such as "3"'
        )
    return int(text)
