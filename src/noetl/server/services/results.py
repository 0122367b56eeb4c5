"""Results of steps: what the log knows of them, their beginning, their bytes. What opens data was given to the server."""

from dataclasses import dataclass

from noetl.log.port import EventLog
from noetl.model.envelope import Envelope, Meta
from noetl.model.errors import Unavailable
from noetl.model.identity import Identity
from noetl.model.ids import ExecutionId
from noetl.model.reference import Reference, parse_uri
from noetl.model.shown import Download, Preview
from noetl.server.results import Results
from noetl.server.services.access import Access
from noetl.server.services.executions import ExecutionService
from noetl.server.services.origins import metas


class NoStore(Unavailable):
    """This server cannot open data."""

    code = "NO_STORE"


@dataclass(frozen=True, slots=True)
class Shown:
    """`preview` is None when the step has no result to look into."""

    envelope: Envelope
    meta: Meta | None
    preview: Preview | None


class ResultService:
    def __init__(
        self, log: EventLog, executions: ExecutionService, access: Access, results: Results | None = None
    ) -> None:
        self._log = log
        self._executions = executions
        self._access = access
        self._results = results

    async def shown(self, identity: Identity, execution_id: ExecutionId, step: str, rows: int) -> Shown:
        envelope = await self._executions.result(identity, execution_id, step)
        reference = envelope.reference
        if reference is None:
            return Shown(envelope, envelope.meta, None)
        opened = await self._opened(identity, reference)
        found = await metas(self._log, [reference])
        return Shown(envelope, found.get(reference.ref_id, envelope.meta), await opened.preview(reference, rows))

    async def download(
        self,
        identity: Identity,
        execution_id: ExecutionId,
        step: str,
        format: str | None = None,
        start: int = 0,
        stop: int | None = None,
    ) -> Download:
        reference = (await self._executions.result(identity, execution_id, step)).reference
        return await (await self._opened(identity, reference)).download(reference, format, start, stop)

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
