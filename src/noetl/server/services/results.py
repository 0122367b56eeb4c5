"""Results of steps: what the log knows of them, their beginning, their bytes. What opens data was given to the server."""

from dataclasses import dataclass

import msgspec

from noetl.log.port import EventLog, Place
from noetl.model.envelope import Envelope, Meta
from noetl.model.errors import SAMPLE, Expired, NotFound, Unavailable
from noetl.model.identity import Identity
from noetl.model.ids import ExecutionId
from noetl.model.reference import Lifetime, Reference, parse_uri
from noetl.model.shown import Download, Preview
from noetl.server.lives import alive
from noetl.server.results import Results
from noetl.server.services.access import Access
from noetl.server.services.executions import ExecutionService
from noetl.server.services.origins import metas, payloads


class NoStore(Unavailable):
    """This server cannot open data."""

    code = "NO_STORE"


@dataclass(frozen=True, slots=True)
class Shown:
    """`preview` is of the result, or of the rows that a failed step has kept; None when there is nothing to look into."""

    envelope: Envelope
    meta: Meta | None
    preview: Preview | None
    lifetime: Lifetime | None = None
    pinned: bool = False


class ResultService:
    def __init__(
        self,
        log: EventLog,
        executions: ExecutionService,
        access: Access,
        results: Results | None = None,
    ) -> None:
        self._log = log
        self._executions = executions
        self._access = access
        self._results = results

    async def shown(
        self, identity: Identity, execution_id: ExecutionId, step: str, rows: int
    ) -> Shown:
        envelope = await self._executions.result(identity, execution_id, step)
        reference = envelope.reference
        if reference is None:
            return Shown(envelope, envelope.meta, await self._sample(identity, envelope, rows))
        opened = await self._opened(identity, reference)
        lifetime = await self._alive(reference)
        found = await metas(self._log, [reference])
        return Shown(
            envelope,
            found.get(reference.ref_id, envelope.meta),
            await opened.preview(reference, rows),
            lifetime,
            await self._pinned(reference),
        )

    async def _sample(self, identity: Identity, envelope: Envelope, rows: int) -> Preview | None:
        """Rows that show what is wrong, of a step that failed and kept some."""
        kept = {} if envelope.error is None else envelope.error.detail.get(SAMPLE)
        if not kept:
            return None
        reference = msgspec.convert(kept, Reference)
        opened = await self._opened(identity, reference)
        await self._alive(reference)
        return await opened.preview(reference, rows)

    async def pin(self, identity: Identity, execution_id: ExecutionId, step: str) -> None:
        """Expired when it is too late."""
        reference, places = await self._stored(identity, execution_id, step)
        await self._log.pin_results(places)
        try:
            await self._alive(reference)
        except Expired:
            await self._log.unpin_results(places)
            raise

    async def unpin(self, identity: Identity, execution_id: ExecutionId, step: str) -> None:
        _, places = await self._stored(identity, execution_id, step)
        await self._log.unpin_results(places)

    async def _stored(
        self, identity: Identity, execution_id: ExecutionId, step: str
    ) -> tuple[Reference, list[Place]]:
        """The steps whose payloads the result is made of: of a child's or an inherited one, those over there."""
        envelope = await self._executions.result(identity, execution_id, step)
        _unless_failed(envelope, execution_id, step)
        reference = envelope.reference
        if reference is None:
            raise NotFound(
                f"step {step} has stored nothing", hint="noetl result show says what it left"
            )
        addresses = [parse_uri(payload.uri) for payload in await payloads(self._log, reference)]
        places = list(dict.fromkeys((each.execution_id, each.step) for each in addresses))
        for owner in {owner for owner, _ in places}:
            await self._access.check(identity, owner)
        return reference, places

    async def _alive(self, reference: Reference) -> Lifetime | None:
        """Expired when it is gone, whether or not somebody has deleted it by now."""
        return await alive(
            self._log, {each.ref_id: each.uri for each in await payloads(self._log, reference)}
        )

    async def _pinned(self, reference: Reference) -> bool:
        where = parse_uri(reference.uri)
        return (where.execution_id, where.step) in await self._log.pinned_results(
            [where.execution_id]
        )

    async def download(
        self,
        identity: Identity,
        execution_id: ExecutionId,
        step: str,
        format: str | None = None,
        start: int = 0,
        stop: int | None = None,
    ) -> Download:
        """NotFound when the step failed and left nothing."""
        envelope = await self._executions.result(identity, execution_id, step)
        _unless_failed(envelope, execution_id, step)
        reference = envelope.reference
        opened = await self._opened(identity, reference)
        if reference is not None:
            await self._alive(reference)
        return await opened.download(reference, format, start, stop)

    async def opened(self, identity: Identity, reference: Reference) -> Download:
        """A stored value as JSON. Of an older reference only the address is known: nobody can tell whether it has expired."""
        results = await self._opened(identity, reference)
        if reference.ref_id:
            await self._alive(reference)
        return await results.download(reference, "json")

    async def _opened(self, identity: Identity, reference: Reference | None) -> Results:
        """A step's result may live in another execution: its child's, or the one it was inherited from."""
        if reference is not None:
            await self._access.check(identity, parse_uri(reference.uri).execution_id)
        if self._results is None:
            raise NoStore(
                "this server has no access to the result store",
                hint="noetl result shows it on a machine that has: same NOETL_HOME, or the same NOETL_STORAGE_CLOUD_TIER",
            )
        return self._results


def _unless_failed(envelope: Envelope, execution_id: ExecutionId, step: str) -> None:
    error = envelope.error
    if error is not None and envelope.reference is None:
        raise NotFound(
            f"step {step} failed and left no result: {error.code}: {error.message}",
            hint=f"noetl exec explain {execution_id} {step} says more; noetl exec retry {execution_id} runs it again",
        )
