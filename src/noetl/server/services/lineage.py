"""What results were made from: a walk over references, their parents and their inputs, in whichever execution they are."""

from dataclasses import dataclass

from noetl.log.port import EventLog, Traced
from noetl.model.envelope import Envelope, Meta
from noetl.model.errors import InvalidInput
from noetl.model.identity import Identity
from noetl.model.ids import ExecutionId, RefId
from noetl.server.services.executions import ExecutionService
from noetl.server.services.origins import metas, payloads

DEPTH, DEEPEST = 16, 64
PAGE = 100


@dataclass(frozen=True, slots=True)
class LineageSource:
    """A reference, what it was made from, and what its envelope says of its making."""

    traced: Traced
    meta: Meta | None


@dataclass(frozen=True, slots=True)
class Trace:
    """`roots` is the result itself; of a loop, its parts. `next`: where the next page begins."""

    envelope: Envelope
    roots: tuple[RefId, ...]
    sources: list[LineageSource]
    next: str | None


class LineageService:
    def __init__(self, log: EventLog, executions: ExecutionService) -> None:
        self._log = log
        self._executions = executions

    async def trace(
        self,
        identity: Identity,
        execution_id: ExecutionId,
        step: str,
        depth: int = DEPTH,
        after: str | None = None,
        limit: int = PAGE,
    ) -> Trace:
        """Nearest first."""
        envelope = await self._executions.result(identity, execution_id, step)
        roots = await self._roots(envelope)
        found = await self._log.lineage(
            identity.tenant, list(roots), depth, _place(after), limit + 1
        )
        page = found[:limit]
        known = await metas(self._log, [each.reference for each in page])
        sources = [LineageSource(each, known.get(each.reference.ref_id)) for each in page]
        return Trace(envelope, roots, sources, _cursor(page[-1]) if len(found) > limit else None)

    async def _roots(self, envelope: Envelope) -> tuple[RefId, ...]:
        """A step that failed has no result; what it went out from is named by its envelope."""
        if envelope.reference is not None:
            return tuple(
                dict.fromkeys(
                    [part.ref_id for part in await payloads(self._log, envelope.reference)]
                )
            )
        above = envelope.parent_ref.ref_id if envelope.parent_ref is not None else None
        return (above,) if above is not None and above.isdecimal() else ()


def _cursor(traced: Traced) -> str:
    return f"{traced.depth}.{traced.reference.ref_id}"


def _place(after: str | None) -> tuple[int, RefId] | None:
    if after is None:
        return None
    depth, _, ref_id = after.partition(".")
    if not (depth.isdecimal() and ref_id.isdecimal() and len(depth) < 4 and int(ref_id) < 1 << 63):
        raise InvalidInput(f"{after!r} is not a page", hint="give `next` of the page before")
    return int(depth), RefId(ref_id)
