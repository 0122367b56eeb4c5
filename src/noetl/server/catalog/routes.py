"""Routes for playbooks: register, list, read, compare."""

from typing import Annotated, Any

from starlette.requests import Request

from noetl.model.errors import InvalidInput
from noetl.server.catalog.views import (
    DifferenceView,
    EntriesView,
    GraphView,
    PlaybookView,
    RegisteredView,
    VersionsView,
)
from noetl.server.http.bodies import decode_strict_json
from noetl.server.http.depends import Has, Who
from noetl.server.http.openapi import make_inline_schema
from noetl.server.http.parameters import Limit, QueryParameter
from noetl.server.http.routing import Reply, Routes
from noetl.server.http.structs import LongText, RequestBody, describe
from noetl.server.http.validation import StructReader

routes = Routes("catalog")
# What has a hash for its name never changes. Only the client that asked may keep it.
IMMUTABLE = {"Cache-Control": "private, max-age=31536000, immutable"}

EXAMPLE = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: hello, path: examples/hello}
workflow:
  - step: start
    tool: {kind: python, code: "result = {'hello': 'world'}"}
"""


class Registration(RequestBody, frozen=True):
    """`path` defaults to the playbook's own path or name."""

    content: Annotated[str, describe(example=EXAMPLE)]
    path: Annotated[LongText | None, describe(example="examples/hello")] = None


_registrations = StructReader(Registration)
_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": make_inline_schema(Registration)},
            "text/yaml": {"schema": {"type": "string"}, "example": EXAMPLE},
        },
    }
}


@routes.post("/api/catalog/register", status=201, extra=_BODY)
async def register_playbook(
    request: Request,
    has: Has,
    who: Who,
    path: Annotated[str | None, QueryParameter("for a text/yaml body", max_length=200)] = None,
) -> Reply[RegisteredView]:
    """Validate and store a playbook: 201 for a new version, 200 if the latest has this text."""
    registration = await _read_registration(request, path)
    registered = await has.catalog.register(who, registration.content, registration.path)
    return Reply(registered, 201 if registered.created else 200)


@routes.get("/api/catalog")
async def list_playbooks(
    has: Has,
    who: Who,
    prefix: Annotated[str, QueryParameter("paths that begin so", max_length=200)] = "",
    after: Annotated[str, QueryParameter("`next` of the page before", max_length=200)] = "",
    limit: Limit = 100,
) -> EntriesView:
    """The latest version of every playbook, sorted by path."""
    return await has.catalog.list_latest(who, prefix, after, limit)


@routes.get("/api/catalog/playbooks/{path:path}")
async def get_playbook(
    path: str,
    has: Has,
    who: Who,
    version: Annotated[int | None, QueryParameter("default: the latest", ge=1, le=1 << 31)] = None,
) -> PlaybookView:
    """The latest version, or the one that is named."""
    return await has.catalog.get(who, path, version)


@routes.get("/api/catalog/hashes/{hash}")
async def get_playbook_by_hash(hash: str, has: Has, who: Who) -> Reply[PlaybookView]:
    """The playbook text with this hash, to which executions are pinned. It never changes and may be
    kept."""
    return Reply(await has.catalog.get_by_hash(who, hash), 200, IMMUTABLE)


@routes.get("/api/catalog/hashes/{hash}/graph")
async def get_playbook_graph(hash: str, has: Has, who: Who) -> Reply[GraphView]:
    """The steps and arcs of the playbook text with this hash, with the lines at which they stand.
    It never changes and may be kept."""
    return Reply(await has.catalog.get_graph(who, hash), 200, IMMUTABLE)


@routes.get("/api/catalog/versions/{path:path}")
async def list_versions(
    path: str,
    has: Has,
    who: Who,
    before: Annotated[
        int | None, QueryParameter("`next` of the page before", ge=1, le=1 << 31)
    ] = None,
    limit: Limit = 50,
) -> VersionsView:
    """The versions of a playbook, newest first."""
    return await has.catalog.list_playbook_versions(who, path, before, limit)


@routes.get("/api/catalog/diff/{path:path}")
async def diff_playbook(
    path: str,
    has: Has,
    who: Who,
    older: Annotated[int, QueryParameter("a version", ge=1, le=1 << 31)],
    newer: Annotated[int | None, QueryParameter("default: the latest", ge=1, le=1 << 31)] = None,
) -> DifferenceView:
    """Two versions of a playbook, compared line by line."""
    return await has.catalog.diff_versions(who, path, older, newer)


async def _read_registration(request: Request, path: str | None) -> Registration:
    """Read the body as JSON or YAML.

    Other types are refused: without a preflight, a browser cannot send these two to another site.
    """
    content_type = request.headers.get("content-type", "")
    kind = content_type.partition(";")[0].strip().lower()
    body = await request.body()
    if kind == "application/json":
        registration: Registration = _registrations.read(decode_strict_json(body), ())
        return registration
    if kind in ("text/yaml", "application/yaml", "application/x-yaml", "text/x-yaml"):
        try:
            return Registration(content=body.decode(), path=path)
        except UnicodeDecodeError as error:
            raise InvalidInput("the playbook is not UTF-8 text") from error
    raise InvalidInput(
        f"a playbook is not {kind or 'without a type'}",
        hint="Content-Type: text/yaml, or application/json",
    )
