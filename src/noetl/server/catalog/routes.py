"""Routes for playbooks: register, list, read, compare."""

from typing import Annotated, Any

from msgspec import Meta
from starlette.requests import Request

from noetl.catalog.port import CatalogEntry
from noetl.model.errors import InvalidInput
from noetl.playbook.findings import Finding
from noetl.server.http.bodies import RequestBody, View, decode_strict_json
from noetl.server.http.depends import Has, Who
from noetl.server.http.openapi import make_inline_schema
from noetl.server.http.parameters import Limit, QueryParameter
from noetl.server.http.routing import Reply, Routes
from noetl.server.http.validation import StructReader

routes = Routes("catalog")

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

    content: Annotated[str, Meta(examples=[EXAMPLE])]
    path: Annotated[
        Annotated[str, Meta(max_length=200)] | None, Meta(examples=["examples/hello"])
    ] = None


class FindingView(View, frozen=True):
    file: str
    line: int
    column: int
    step: str | None
    code: str
    message: str
    hint: str | None
    severity: str


class EntryView(View, frozen=True):
    path: Annotated[str, Meta(examples=["examples/hello"])]
    version: Annotated[int, Meta(examples=[3])]
    hash: Annotated[
        str, Meta(examples=["9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"])
    ]


class RegisteredView(EntryView, frozen=True):
    created: Annotated[bool, Meta(description="false: this text was the latest version already")]
    findings: Annotated[list[FindingView], Meta(description="warnings and notes")]


class PlaybookView(EntryView, frozen=True):
    content: str


class EntriesView(View, frozen=True):
    playbooks: list[EntryView]
    next: Annotated[str | None, Meta(description="the `after` of the next page")]


class VersionsView(View, frozen=True):
    versions: list[EntryView]
    next: Annotated[int | None, Meta(description="the `before` of the next page")]


class DifferenceView(View, frozen=True):
    path: str
    older: int
    newer: int
    diff: Annotated[str, Meta(description="unified; empty when the texts are equal")]


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
    path: Annotated[
        str | None, QueryParameter(max_length=200, description="for a text/yaml body")
    ] = None,
) -> Reply[RegisteredView]:
    """Validate and store a playbook: 201 for a new version, 200 if the latest has this text."""
    registration = await _read_registration(request, path)
    registered = await has.catalog.register(who, registration.content, registration.path)
    view = RegisteredView(
        **_describe_entry(registered.entry),
        created=registered.created,
        findings=[_make_finding_view(finding) for finding in registered.findings],
    )
    return Reply(view, 201 if registered.created else 200)


@routes.get("/api/catalog")
async def list_playbooks(
    has: Has,
    who: Who,
    prefix: Annotated[str, QueryParameter(max_length=200, description="paths that begin so")] = "",
    after: Annotated[
        str, QueryParameter(max_length=200, description="`next` of the page before")
    ] = "",
    limit: Limit = 100,
) -> EntriesView:
    """The latest version of every playbook, sorted by path."""
    entries = await has.catalog.list_latest(who, prefix, after, limit)
    views = [EntryView(**_describe_entry(entry)) for entry in entries]
    following = entries[-1].path if len(entries) == limit else None
    return EntriesView(playbooks=views, next=following)


@routes.get("/api/catalog/playbooks/{path:path}")
async def get_playbook(
    path: str,
    has: Has,
    who: Who,
    version: Annotated[
        int | None, QueryParameter(ge=1, le=1 << 31, description="default: the latest")
    ] = None,
) -> PlaybookView:
    """The latest version, or the one that is named."""
    entry = await has.catalog.get(who, path, version)
    return PlaybookView(**_describe_entry(entry), content=entry.text)


@routes.get("/api/catalog/hashes/{hash}")
async def get_playbook_by_hash(hash: str, has: Has, who: Who) -> PlaybookView:
    """The playbook text with this hash, to which executions are pinned."""
    entry = await has.catalog.get_by_hash(who, hash)
    return PlaybookView(**_describe_entry(entry), content=entry.text)


@routes.get("/api/catalog/versions/{path:path}")
async def list_versions(
    path: str,
    has: Has,
    who: Who,
    before: Annotated[
        int | None, QueryParameter(ge=1, le=1 << 31, description="`next` of the page before")
    ] = None,
    limit: Limit = 50,
) -> VersionsView:
    """The versions of a playbook, newest first."""
    entries = await has.catalog.list_playbook_versions(who, path, before, limit)
    has_more = len(entries) == limit and entries[-1].version > 1
    views = [EntryView(**_describe_entry(entry)) for entry in entries]
    return VersionsView(versions=views, next=entries[-1].version if has_more else None)


@routes.get("/api/catalog/diff/{path:path}")
async def diff_playbook(
    path: str,
    has: Has,
    who: Who,
    older: Annotated[int, QueryParameter(ge=1, le=1 << 31, description="a version")],
    newer: Annotated[
        int | None, QueryParameter(ge=1, le=1 << 31, description="default: the latest")
    ] = None,
) -> DifferenceView:
    """Two versions of a playbook, compared line by line."""
    difference = await has.catalog.diff_versions(who, path, older, newer)
    return DifferenceView(
        path=path,
        older=difference.older.version,
        newer=difference.newer.version,
        diff=difference.diff,
    )


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


def _describe_entry(entry: CatalogEntry) -> dict[str, Any]:
    return {"path": entry.path, "version": entry.version, "hash": entry.hash}


def _make_finding_view(finding: Finding) -> FindingView:
    described: dict[str, Any] = finding.to_dict()
    return FindingView(**described)
