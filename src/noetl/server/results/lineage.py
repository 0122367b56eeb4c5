"""Lineage of results: walks from a result to its parents and inputs, across executions."""

from collections.abc import Iterator

import msgspec

from noetl.log.events.port import EventLog
from noetl.log.lineage.port import Lineage, LineagePosition, TracedReference
from noetl.model.clock import format_iso, format_iso_or_none
from noetl.model.envelope import Envelope, Meta
from noetl.model.errors import InvalidInput
from noetl.model.identity import Identity, Permission, needs
from noetl.model.ids import ExecutionId, RefId
from noetl.model.reference import parse_result_key, parse_uri
from noetl.server.executions.service import ExecutionService
from noetl.server.results.origins import TenantManifests, list_payloads, read_metas
from noetl.server.results.views import EdgeView, NodeView, TraceView, describe_reference

DEFAULT_TRACE_DEPTH = 16  # steps back, unless the caller asks for more
MAX_TRACE_DEPTH = 64
DEFAULT_TRACE_NODES = 100  # references, unless the caller asks for more


class LineageService:
    def __init__(self, log: EventLog, lineage: Lineage, executions: ExecutionService) -> None:
        self._log = log
        self._lineage = lineage
        self._executions = executions

    @needs(Permission.READ)
    async def trace(
        self,
        identity: Identity,
        execution_id: ExecutionId,
        step: str,
        depth: int = DEFAULT_TRACE_DEPTH,
        after: str | None = None,
        limit: int = DEFAULT_TRACE_NODES,
        part: RefId | None = None,
    ) -> TraceView:
        """A page of the sources of the step's result, nearest first.

        The roots are the result itself, or the parts of a loop's result; `part` limits them to one.
        """
        envelope = await self._executions.get_result(identity, execution_id, step)
        roots = (part,) if part is not None else await self._find_roots(identity, envelope)
        found = await self._lineage.trace_references(
            identity.tenant, list(roots), depth, _parse_cursor(after), limit + 1
        )
        page = found[:limit]
        shown = {traced.reference.ref_id for traced in page}
        metas = await read_metas(self._log, [traced.reference for traced in page])
        return TraceView(
            execution_id=execution_id,
            step=step,
            status=envelope.status,
            reference=describe_reference(envelope.reference),
            roots=[root for root in roots if root in shown],
            nodes=[_make_node_view(each, metas.get(each.reference.ref_id)) for each in page],
            edges=[edge for traced in page for edge in _make_edge_views(traced)],
            next=_make_cursor(page[-1]) if len(found) > limit else None,
        )

    async def _find_roots(self, identity: Identity, envelope: Envelope) -> tuple[RefId, ...]:
        """Where the walk begins: the payloads of the result.

        A failed step has no result: the walk begins at the parent that its envelope names.
        """
        if envelope.reference is not None:
            manifests = TenantManifests(self._log, identity.tenant)
            parts = await list_payloads(manifests, envelope.reference)
            return tuple(dict.fromkeys([part.ref_id for part in parts]))
        if envelope.parent_ref is None:
            return ()
        parent = envelope.parent_ref.ref_id
        if parent is None or not parent.isdecimal():
            return ()
        return (parent,)


def _make_node_view(traced: TracedReference, meta: Meta | None) -> NodeView:
    where = parse_uri(traced.reference.uri)
    origin = parse_result_key(where.key)
    return NodeView(
        **(describe_reference(traced.reference) or {}),
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


def _make_cursor(traced: TracedReference) -> str:
    return f"{traced.depth}.{traced.reference.ref_id}"


def _parse_cursor(after: str | None) -> LineagePosition | None:
    if after is None:
        return None
    depth, _, ref_id = after.partition(".")
    is_depth = depth.isdecimal() and len(depth) < 4
    is_ref_id = ref_id.isdecimal() and int(ref_id) < 1 << 63
    if not (is_depth and is_ref_id):
        raise InvalidInput(f"{after!r} is not a page", hint="give `next` of the page before")
    return LineagePosition(int(depth), RefId(ref_id))
