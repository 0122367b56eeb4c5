"""Routes for state between executions: values of a playbook that its next execution reads."""

from typing import Annotated, Any

from fastapi import Header, Path, Query, Response
from pydantic import Field

from noetl.model.errors import InvalidInput
from noetl.model.playbook_state import MAX_STATE_VALUE_BYTES, MAX_STATE_VERSIONS
from noetl.server.http import shapes
from noetl.server.http.bodies import Limit, RequestBody, View, make_router
from noetl.server.http.depends import Has, Who

routes = make_router("state")

BookPath = Annotated[str, Path(description="of the playbook", examples=["etl/orders"])]
StateName = Annotated[str, Path(max_length=100, examples=["watermark"])]
IfMatch = Annotated[
    str | None,
    Header(alias="If-Match", description='the version that must be there: "3"; "0": none'),
]


class StateView(View):
    path: str = Field(examples=["etl/orders"])
    name: str = Field(examples=["watermark"])
    version: int = Field(examples=[3], description="counts the writes of this name")
    value: Any = Field(examples=[4711])
    execution_id: str | None = Field(description="the execution that wrote it")
    seq: int | None = Field(description="the number of its event")
    by: str | None = Field(description="the person that wrote it")
    at: str


class StatePageView(View):
    state: list[StateView]
    next: str | None = Field(description="`after` of the next page; null: there is none")


class StateOfPathView(View):
    path: str
    state: list[StateView]


class StateVersionView(StateView):
    unset: bool = Field(description="this version took the value away")


class StateHistoryView(View):
    versions: list[StateVersionView]


class StateBody(RequestBody):
    value: Any = Field(
        examples=[4711],
        description=f"a scalar, or a map or list of scalars, up to {MAX_STATE_VALUE_BYTES} bytes",
    )
    expected_version: int | None = Field(
        default=None,
        ge=0,
        description="write only if this version is there; 0: only if nobody has ever written it",
    )


class StateUnsetView(View):
    path: str
    name: str
    version: int


@routes.get("/api/state")
async def list_state(
    has: Has, who: Who, after: Annotated[str, Query(max_length=400)] = "", limit: Limit = 100
) -> StatePageView:
    """Values of all playbooks, sorted by path and name."""
    path, _, name = after.rpartition("#")
    rows = await has.playbook_state.list_page(who, (path, name), limit)
    following = None
    if len(rows) == limit:
        last = rows[-1]
        following = f"{last.path}#{last.name}"
    values = [StateView(**shapes.dump_state_value(row)) for row in rows]
    return StatePageView(state=values, next=following)


@routes.get("/api/state/values/{path:path}")
async def get_state_of_path(path: BookPath, has: Has, who: Who) -> StateOfPathView:
    """All values of a playbook, sorted by name."""
    rows = await has.playbook_state.list_state_values(who, path)
    values = [StateView(**shapes.dump_state_value(row)) for row in rows]
    return StateOfPathView(path=path, state=values)


@routes.get("/api/state/value/{name}/{path:path}")
async def get_state_value(
    name: StateName, path: BookPath, has: Has, who: Who, response: Response
) -> StateView:
    """One value; its version is the `ETag` too."""
    row = await has.playbook_state.get(who, path, name)
    response.headers["ETag"] = f'"{row.version}"'
    return StateView(**shapes.dump_state_value(row))


@routes.put("/api/state/value/{name}/{path:path}")
async def put_state_value(
    name: StateName,
    path: BookPath,
    body: StateBody,
    has: Has,
    who: Who,
    response: Response,
    if_match: IfMatch = None,
) -> StateView:
    """Write a value; 409 if its version is not `expected_version` or `If-Match`. Running executions
    that have read the value fail when they write it (STATE_CONFLICT)."""
    expected = body.expected_version
    if if_match is not None:
        expected = _parse_version(if_match)
    row = await has.playbook_state.put(who, path, name, body.value, expected)
    response.headers["ETag"] = f'"{row.version}"'
    return StateView(**shapes.dump_state_value(row))


@routes.delete("/api/state/value/{name}/{path:path}")
async def delete_state_value(
    name: StateName,
    path: BookPath,
    has: Has,
    who: Who,
    expected_version: Annotated[int | None, Query(ge=0, le=1 << 62)] = None,
    if_match: IfMatch = None,
) -> StateUnsetView:
    """Delete a value: templates find it undefined. Its history stays, and its version counts on."""
    if if_match is not None:
        expected_version = _parse_version(if_match)
    version = await has.playbook_state.unset(who, path, name, expected_version)
    return StateUnsetView(path=path, name=name, version=version)


@routes.get("/api/state/history/{name}/{path:path}")
async def get_state_history(
    name: StateName,
    path: BookPath,
    has: Has,
    who: Who,
    before: Annotated[
        int | None, Query(ge=1, le=1 << 62, description="versions older than this one")
    ] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_STATE_VERSIONS)] = MAX_STATE_VERSIONS,
) -> StateHistoryView:
    """The last versions of a value, newest first, with the execution and event that wrote each."""
    rows = await has.playbook_state.read_history(who, path, name, before, limit)
    versions = [StateVersionView(**shapes.dump_state_value(row), unset=row.unset) for row in rows]
    return StateHistoryView(versions=versions)


def _parse_version(if_match: str) -> int:
    """The version that an `If-Match` header names."""
    text = if_match.strip().strip('"')
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise InvalidInput(
            f"If-Match: {if_match[:40]!r} is no version", hint='a number in quotes, such as "3"'
        )
    return int(text)
