"""Routes for playbooks: register, list, read, compare."""

from typing import Annotated, Any

from fastapi import Query, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import Field, ValidationError

from noetl.catalog.port import CatalogEntry
from noetl.model.errors import InvalidInput
from noetl.playbook.findings import Finding
from noetl.server.http.bodies import Limit, RequestBody, View, decode_strict_json, make_router
from noetl.server.http.depends import Has, Who

routes = make_router("catalog")

EXAMPLE = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: hello, path: examples/hello}
workflow:
  - step: start
    tool: {kind: python, code: "result = {'hello': 'world'}"}
"""


class Registration(RequestBody):
    """`path` defaults to the playbook's own path or name."""

    content: str = Field(examples=[EXAMPLE])
    path: str | None = Field(default=None, max_length=200, examples=["examples/hello"])


class FindingView(View):
    file: str
    line: int
    column: int
    step: str | None
    code: str
    message: str
    hint: str | None
    severity: str


class EntryView(View):
    path: str = Field(examples=["examples/hello"])
    version: int = Field(examples=[3])
    hash: str = Field(examples=["9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"])


class RegisteredView(EntryView):
    created: bool = Field(description="false: this text was the latest version already")
    findings: list[FindingView] = Field(description="warnings and notes")


class PlaybookView(EntryView):
    content: str


class EntriesView(View):
    playbooks: list[EntryView]
    next: str | None = Field(description="the `after` of the next page")


class VersionsView(View):
    versions: list[EntryView]
    next: int | None = Field(description="the `before` of the next page")


class DifferenceView(View):
    path: str
    older: int
    newer: int
    diff: str = Field(description="unified; empty when the texts are equal")


_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": Registration.model_json_schema()},
            "text/yaml": {"schema": {"type": "string"}, "example": EXAMPLE},
        },
    }
}


@routes.post("/api/catalog/register", status_code=201, openapi_extra=_BODY)
async def register_playbook(
    request: Request,
    response: Response,
    has: Has,
    who: Who,
    path: Annotated[str | None, Query(max_length=200, description="for a text/yaml body")] = None,
) -> RegisteredView:
    """Validate and store a playbook: 201 for a new version, 200 if the latest has this text."""
    registration = await _read_registration(request, path)
    registered = await has.catalog.register(who, registration.content, registration.path)
    response.status_code = 201 if registered.created else 200
    return RegisteredView(
        **_describe_entry(registered.entry),
        created=registered.created,
        findings=[_make_finding_view(finding) for finding in registered.findings],
    )


@routes.get("/api/catalog")
async def list_playbooks(
    has: Has,
    who: Who,
    prefix: Annotated[str, Query(max_length=200, description="paths that begin so")] = "",
    after: Annotated[str, Query(max_length=200, description="`next` of the page before")] = "",
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
        int | None, Query(ge=1, le=1 << 31, description="default: the latest")
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
        int | None, Query(ge=1, le=1 << 31, description="`next` of the page before")
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
    older: Annotated[int, Query(ge=1, le=1 << 31, description="a version")],
    newer: Annotated[int | None, Query(ge=1, le=1 << 31, description="default: the latest")] = None,
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
        try:
            return Registration.model_validate(decode_strict_json(body))
        except ValidationError as error:
            raise RequestValidationError(error.errors()) from error
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
    return FindingView.model_validate(finding.to_dict())
