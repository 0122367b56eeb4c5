"""Lineage of results: walks from a result to its parents and inputs, across executions."""

from dataclasses import dataclass

from noetl.log.events.port import EventLog
from noetl.log.lineage.port import Lineage, LineagePosition, TracedReference
from noetl.model.envelope import Envelope, Meta
from noetl.model.errors import InvalidInput
from noetl.model.identity import Identity
from noetl.model.ids import ExecutionId, RefId
from noetl.server.executions.service import ExecutionService
from noetl.server.results.origins import list_payloads, read_metas

DEFAULT_TRACE_DEPTH = 16  # steps back, unless the caller asks for more
MAX_TRACE_DEPTH = 64
DEFAULT_TRACE_NODES = 100  # references, unless the caller asks for more


@dataclass(frozen=True, slots=True)
class LineageSource:
    """A reference with its sources, and the metadata of its envelope."""

    traced: TracedReference
    meta: Meta | None


@dataclass(frozen=True, slots=True)
class Trace:
    """A page of the sources of a result.

    `roots` is the result itself, or the parts of a loop's result. `next` begins the next page.
    """

    envelope: Envelope
    roots: tuple[RefId, ...]
    sources: list[LineageSource]
    next: str | None


class LineageService:
    def __init__(self, log: EventLog, lineage: Lineage, executions: ExecutionService) -> None:
        self._log = log
        self._lineage = lineage
        self._executions = executions

    async def trace(
        self,
        identity: Identity,
        execution_id: ExecutionId,
        step: str,
        depth: int = DEFAULT_TRACE_DEPTH,
        after: str | None = None,
        limit: int = DEFAULT_TRACE_NODES,
    ) -> Trace:
        """The sources of the step's result, nearest first."""
        envelope = await self._executions.get_result(identity, execution_id, step)
        roots = await self._find_roots(envelope)
        found = await self._lineage.trace_references(
            identity.tenant, list(roots), depth, _parse_cursor(after), limit + 1
        )
        page = found[:limit]
        by_reference = await read_metas(self._log, [traced.reference for traced in page])
        sources = [
            LineageSource(traced, by_reference.get(traced.reference.ref_id)) for traced in page
        ]
        following = _make_cursor(page[-1]) if len(found) > limit else None
        return Trace(envelope, roots, sources, following)

    async def _find_roots(self, envelope: Envelope) -> tuple[RefId, ...]:
        """Where the walk begins: the payloads of the result.

        A failed step has no result: the walk begins at the parent that its envelope names.
        """
        if envelope.reference is not None:
            parts = await list_payloads(self._log, envelope.reference)
            return tuple(dict.fromkeys([part.ref_id for part in parts]))
        if envelope.parent_ref is None:
            return ()
        parent = envelope.parent_ref.ref_id
        if parent is None or not parent.isdecimal():
            return ()
        return (parent,)


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
