"""The structs that answers about results, their use of space and their sources have."""

from typing import Annotated, Any, Literal

from noetl.model.previews import Preview
from noetl.model.reference import Reference
from noetl.server.http.structs import View, describe


class ColumnView(View, frozen=True):
    name: str
    type: Annotated[str | None, describe("of Arrow; null where values are JSON", example="int64")]


class PreviewView(View, frozen=True):
    row_count: int | None
    columns: list[ColumnView]
    rows: Annotated[
        list[Any] | None, describe("the first of them; null: the value is no list of rows")
    ]
    value: Annotated[Any, describe("of what has no rows, when it is small")]
    cut: Annotated[bool, describe("there is more than is shown")]


class ResultView(View, frozen=True):
    """The envelope and the beginning of the data. Keys that name secrets (password, api_key …) are
    left out, long texts cut."""

    execution_id: str
    step: str
    status: Annotated[str, describe(example="ok")]
    reference: Annotated[
        dict[str, Any] | None, describe("where the data is: uri, tier, bytes, rows, format, sha256")
    ]
    parent_ref: str | None
    context: dict[str, Any]
    error: dict[str, Any] | None
    meta: Annotated[dict[str, Any], describe("tool, input and provenance")]
    preview: Annotated[
        PreviewView | None, describe("of a failed step: the rows it kept that show what is wrong")
    ]
    scope: Annotated[
        str,
        describe(
            "what its task asks for: step, execution, workflow or permanent", example="execution"
        ),
    ]
    ttl: Annotated[
        str | None, describe("how long it is to stay, from when it was made", example="7d")
    ]
    pinned: Annotated[bool, describe("it stays in spite of scope and ttl")]


class PinView(View, frozen=True):
    execution_id: str
    step: str
    pinned: bool


class TierView(View, frozen=True):
    count: int
    bytes: int


class UsedView(View, frozen=True):
    execution_id: str
    path: str
    status: str
    tiers: Annotated[
        dict[str, TierView],
        describe(
            example={"kv": {"count": 3, "bytes": 812}, "disk": {"count": 1, "bytes": 7340032}}
        ),
    ]
    count: Annotated[int, describe("payloads, in all tiers")]
    bytes: int
    expired: Annotated[int, describe("payloads that are gone")]
    pinned: Annotated[list[str], describe("steps with pinned results")]


class UsageView(View, frozen=True):
    executions: list[UsedView]
    next: Annotated[str | None, describe("the `before` of the next page")]


class NodeView(View, frozen=True):
    ref_id: str
    depth: Annotated[int, describe("steps back from the result, by the shortest way")]
    uri: str
    tier: str
    bytes: int | None
    rows: int | None
    format: str | None
    sha256: str | None
    execution_id: str
    kind: Annotated[str, describe(example="result")]
    step: str
    task: str | None
    command_id: str | None
    attempt: int | None
    at: str
    expired_at: Annotated[str | None, describe("since when its data is gone")]
    tool: Annotated[dict[str, str] | None, describe(example={"kind": "http"})]
    input: Annotated[
        dict[str, Any] | None,
        describe("what the task was given, without secrets: `value`, or `ref`"),
    ]
    provenance: Annotated[dict[str, Any], describe("what the playbook's author says")]


class EdgeView(View, frozen=True):
    source: Annotated[str, describe("ref_id of what was used")]
    target: Annotated[str, describe("ref_id of what was made from it")]
    kind: Annotated[
        Literal["parent", "input"],
        describe("parent: the task before it; input: what was read for it"),
    ]


class TraceView(View, frozen=True):
    execution_id: str
    step: str
    status: str
    reference: dict[str, Any] | None
    roots: Annotated[
        list[str],
        describe("ref_ids of the result itself; of a loop, of its parts that are on this page"),
    ]
    nodes: list[NodeView]
    edges: Annotated[
        list[EdgeView],
        describe("that lead to nodes of this page; their sources may be on a later one"),
    ]
    next: Annotated[str | None, describe("the `after` of the next page")]


def describe_reference(found: Reference | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {
        "ref_id": found.ref_id,
        "uri": found.uri,
        "tier": found.type,
        "bytes": found.bytes,
        "rows": found.rows,
        "format": found.format,
        "sha256": found.sha256,
    }


def make_preview_view(preview: Preview | None) -> PreviewView | None:
    if preview is None:
        return None
    columns = [ColumnView(name=column.name, type=column.type) for column in preview.columns]
    return PreviewView(
        row_count=preview.row_count,
        columns=columns,
        rows=preview.rows,
        value=preview.value,
        cut=preview.cut,
    )
