"""The structs that answers about results, their use of space and their sources have."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from noetl.log.port import TracedReference
from noetl.model.clock import format_iso, format_iso_or_none
from noetl.model.ids import ExecutionId
from noetl.model.previews import Preview
from noetl.model.reference import Lifetime, Reference, parse_result_key, parse_uri
from noetl.playbook import durations
from noetl.server.http.bodies import View
from noetl.server.results.lineage import LineageSource, Trace
from noetl.server.results.service import ShownResult
from noetl.server.results.usage import Usage


class ColumnView(View, frozen=True):
    name: str
    type: Annotated[
        str | None, Meta(description="of Arrow; null where values are JSON", examples=["int64"])
    ]


class PreviewView(View, frozen=True):
    row_count: int | None
    columns: list[ColumnView]
    rows: Annotated[
        list[Any] | None, Meta(description="the first of them; null: the value is no list of rows")
    ]
    value: Annotated[Any, Meta(description="of what has no rows, when it is small")]
    cut: Annotated[bool, Meta(description="there is more than is shown")]


class ResultView(View, frozen=True):
    """The envelope and the beginning of the data. Keys that name secrets (password, api_key …) are
    left out, long texts cut."""

    execution_id: str
    step: str
    status: Annotated[str, Meta(examples=["ok"])]
    reference: Annotated[
        dict[str, Any] | None,
        Meta(description="where the data is: uri, tier, bytes, rows, format, sha256"),
    ]
    parent_ref: str | None
    context: dict[str, Any]
    error: dict[str, Any] | None
    meta: Annotated[dict[str, Any], Meta(description="tool, input and provenance")]
    preview: Annotated[
        PreviewView | None,
        Meta(description="of a failed step: the rows it kept that show what is wrong"),
    ]
    scope: Annotated[
        str,
        Meta(
            description="what its task asks for: step, execution, workflow or permanent",
            examples=["execution"],
        ),
    ]
    ttl: Annotated[
        str | None,
        Meta(description="how long it is to stay, from when it was made", examples=["7d"]),
    ]
    pinned: Annotated[bool, Meta(description="it stays in spite of scope and ttl")]


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
        Meta(examples=[{"kv": {"count": 3, "bytes": 812}, "disk": {"count": 1, "bytes": 7340032}}]),
    ]
    count: Annotated[int, Meta(description="payloads, in all tiers")]
    bytes: int
    expired: Annotated[int, Meta(description="payloads that are gone")]
    pinned: Annotated[list[str], Meta(description="steps with pinned results")]


class UsageView(View, frozen=True):
    executions: list[UsedView]
    next: Annotated[str | None, Meta(description="the `before` of the next page")]


class NodeView(View, frozen=True):
    ref_id: str
    depth: Annotated[int, Meta(description="steps back from the result, by the shortest way")]
    uri: str
    tier: str
    bytes: int | None
    rows: int | None
    format: str | None
    sha256: str | None
    execution_id: str
    kind: Annotated[str, Meta(examples=["result"])]
    step: str
    task: str | None
    command_id: str | None
    attempt: int | None
    at: str
    expired_at: Annotated[str | None, Meta(description="since when its data is gone")]
    tool: Annotated[dict[str, str] | None, Meta(examples=[{"kind": "http"}])]
    input: Annotated[
        dict[str, Any] | None,
        Meta(description="what the task was given, without secrets: `value`, or `ref`"),
    ]
    provenance: Annotated[dict[str, Any], Meta(description="what the playbook's author says")]


class EdgeView(View, frozen=True):
    source: Annotated[str, Meta(description="ref_id of what was used")]
    target: Annotated[str, Meta(description="ref_id of what was made from it")]
    kind: Annotated[
        Literal["parent", "input"],
        Meta(description="parent: the task before it; input: what was read for it"),
    ]


class TraceView(View, frozen=True):
    execution_id: str
    step: str
    status: str
    reference: dict[str, Any] | None
    roots: Annotated[
        list[str], Meta(description="ref_ids of the result itself; of a loop, of its parts")
    ]
    nodes: list[NodeView]
    edges: Annotated[
        list[EdgeView],
        Meta(description="that lead to nodes of this page; their sources may be on a later one"),
    ]
    next: Annotated[str | None, Meta(description="the `after` of the next page")]


def make_result_view(execution_id: ExecutionId, step: str, found: ShownResult) -> ResultView:
    envelope = found.envelope
    parent = envelope.parent_ref
    lifetime = found.lifetime or Lifetime()
    return ResultView(
        execution_id=execution_id,
        step=step,
        status=envelope.status,
        reference=_describe_reference(envelope.reference),
        parent_ref=None if parent is None else parent.ref_id,
        context=envelope.context,
        error=None if envelope.error is None else envelope.error.to_template_map(),
        meta={} if found.meta is None else msgspec.to_builtins(found.meta),
        preview=_make_preview_view(found.preview),
        scope=lifetime.scope,
        ttl=None if lifetime.ttl is None else durations.write_duration(lifetime.ttl),
        pinned=found.pinned,
    )


def _make_preview_view(preview: Preview | None) -> PreviewView | None:
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


def make_used_view(found: Usage) -> UsedView:
    tiers = {used.tier: TierView(count=used.count, bytes=used.bytes) for used in found.tiers}
    return UsedView(
        execution_id=found.row.execution_id,
        path=found.row.path,
        status=found.row.status,
        tiers=tiers,
        count=sum(used.count for used in found.tiers),
        bytes=sum(used.bytes for used in found.tiers),
        expired=sum(used.expired for used in found.tiers),
        pinned=list(found.pinned),
    )


def make_trace_view(execution_id: ExecutionId, step: str, found: Trace) -> TraceView:
    return TraceView(
        execution_id=execution_id,
        step=step,
        status=found.envelope.status,
        reference=_describe_reference(found.envelope.reference),
        roots=list(found.roots),
        nodes=[_make_node_view(source) for source in found.sources],
        edges=[edge for source in found.sources for edge in _make_edge_views(source.traced)],
        next=found.next,
    )


def _describe_reference(found: Reference | None) -> dict[str, Any] | None:
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


def _make_node_view(source: LineageSource) -> NodeView:
    traced = source.traced
    meta = source.meta
    where = parse_uri(traced.reference.uri)
    origin = parse_result_key(where.key)
    return NodeView(
        **(_describe_reference(traced.reference) or {}),
        depth=traced.depth,
        execution_id=where.execution_id,
        kind=where.kind,
        step=where.step,
        task=None if origin is None else origin.task,
        command_id=None if origin is None else origin.command_id,
        attempt=None if origin is None else origin.attempt,
        at=format_iso(traced.at),
        expired_at=format_iso_or_none(traced.expired_at),
        tool=None if meta is None else meta.tool,
        input=None if meta is None else msgspec.to_builtins(meta.input),
        provenance={} if meta is None else meta.provenance,
    )


def _make_edge_views(traced: TracedReference) -> Iterator[EdgeView]:
    target = traced.reference.ref_id
    if traced.parent is not None:
        yield EdgeView(source=traced.parent, target=target, kind="parent")
    for source in traced.inputs:
        yield EdgeView(source=source, target=target, kind="input")
