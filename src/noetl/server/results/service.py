"""Results of steps: their metadata from the log, a preview, and their bytes.

The `Results` port that opens data is given to the server from outside.
"""

import msgspec

from noetl.log.events.port import EventLog
from noetl.log.lifetimes.port import ResultLifetimes, StepKey
from noetl.model.envelope import Envelope
from noetl.model.errors import SAMPLE_KEY, Expired, NotFound, Unavailable
from noetl.model.identity import Identity, Permission, needs
from noetl.model.ids import ExecutionId
from noetl.model.previews import Download, Preview
from noetl.model.reference import Lifetime, Reference, parse_uri
from noetl.playbook import durations
from noetl.server.executions.access import Access
from noetl.server.executions.service import ExecutionService
from noetl.server.results.expiry import check_not_expired
from noetl.server.results.opener import OpenResults, Results
from noetl.server.results.origins import TenantManifests, list_payloads, read_metas
from noetl.server.results.views import PinView, ResultView, describe_reference, make_preview_view


class NoStore(Unavailable):
    """This server cannot open data."""

    code = "NO_STORE"


class ResultService:
    """Shows, pins and downloads results of steps for a caller."""

    def __init__(
        self,
        log: EventLog,
        lifetimes: ResultLifetimes,
        executions: ExecutionService,
        access: Access,
        results: OpenResults | None = None,
    ) -> None:
        self._log = log
        self._lifetimes = lifetimes
        self._executions = executions
        self._access = access
        self._results = results

    @needs(Permission.READ)
    async def preview_result(
        self, identity: Identity, execution_id: ExecutionId, step: str, rows: int
    ) -> ResultView:
        """The step's result with a preview of so many rows; of a failed step, of its sample."""
        envelope = await self._executions.get_result(identity, execution_id, step)
        reference = envelope.reference
        meta = envelope.meta
        lifetime: Lifetime | None = None
        is_pinned = False
        if reference is None:
            preview = await self._preview_sample(identity, envelope, rows)
        else:
            results = await self.open_results(identity, reference)
            lifetime = await self._check_expiry(identity, reference)
            recorded = await read_metas(self._log, [reference])
            meta = recorded.get(reference.ref_id, envelope.meta)
            preview = await results.preview(reference, rows)
            is_pinned = await self._is_pinned(reference)
        scope, ttl = _describe_lifetime(lifetime or Lifetime())
        return ResultView(
            execution_id=execution_id,
            step=step,
            status=envelope.status,
            reference=describe_reference(reference),
            parent_ref=None if envelope.parent_ref is None else envelope.parent_ref.ref_id,
            context=envelope.context,
            error=None if envelope.error is None else envelope.error.to_template_map(),
            meta={} if meta is None else msgspec.to_builtins(meta),
            preview=make_preview_view(preview),
            scope=scope,
            ttl=ttl,
            pinned=is_pinned,
        )

    async def _preview_sample(
        self, identity: Identity, envelope: Envelope, rows: int
    ) -> Preview | None:
        """A preview of the rows that a failed step kept to show what is wrong, if it kept any."""
        if envelope.error is None:
            return None
        sample = envelope.error.detail.get(SAMPLE_KEY)
        if not sample:
            return None
        reference = msgspec.convert(sample, Reference)
        results = await self.open_results(identity, reference)
        await self._check_expiry(identity, reference)
        return await results.preview(reference, rows)

    @needs(Permission.OPERATE)
    async def pin(self, identity: Identity, execution_id: ExecutionId, step: str) -> PinView:
        """Keep the result in spite of its lifetime. Raises `Expired` if it is too late."""
        reference, places = await self._find_payload_steps(identity, execution_id, step)
        await self._lifetimes.pin_results(places)
        try:
            await self._check_expiry(identity, reference)
        except Expired:
            await self._lifetimes.unpin_results(places)
            raise
        return PinView(execution_id, step, pinned=True)

    @needs(Permission.OPERATE)
    async def unpin(self, identity: Identity, execution_id: ExecutionId, step: str) -> PinView:
        _, places = await self._find_payload_steps(identity, execution_id, step)
        await self._lifetimes.unpin_results(places)
        return PinView(execution_id, step, pinned=False)

    async def _find_payload_steps(
        self, identity: Identity, execution_id: ExecutionId, step: str
    ) -> tuple[Reference, list[StepKey]]:
        """The result's reference, and the steps that stored its payloads.

        The payloads of a child's or an inherited result belong to steps of another execution.
        """
        envelope = await self._executions.get_result(identity, execution_id, step)
        _check_not_failed(envelope, execution_id, step)
        reference = envelope.reference
        if reference is None:
            raise NotFound(
                f"step {step} has stored nothing", hint="noetl result show says what it left"
            )
        parts = await self._list_payloads(identity, reference)
        addresses = [parse_uri(part.uri) for part in parts]
        places = list(dict.fromkeys(StepKey(where.execution_id, where.step) for where in addresses))
        return reference, places

    async def _list_payloads(self, identity: Identity, reference: Reference) -> list[Reference]:
        """The payloads of a result. Raises `NotFound` if one belongs to another tenant, which a
        worker may have named."""
        parts = await list_payloads(TenantManifests(self._log, identity.tenant), reference)
        for owner in {parse_uri(part.uri).execution_id for part in parts}:
            await self._access.check_tenant(identity, owner)
        return parts

    async def _check_expiry(self, identity: Identity, reference: Reference) -> Lifetime | None:
        """The result's lifetime. Raises `Expired` if it is over, deleted or not."""
        parts = await self._list_payloads(identity, reference)
        return await check_not_expired(self._lifetimes, {part.ref_id: part.uri for part in parts})

    async def _is_pinned(self, reference: Reference) -> bool:
        where = parse_uri(reference.uri)
        pinned = await self._lifetimes.list_pinned_steps([where.execution_id])
        return StepKey(where.execution_id, where.step) in pinned

    @needs(Permission.READ)
    async def download(
        self,
        identity: Identity,
        execution_id: ExecutionId,
        step: str,
        format: str | None = None,
        start: int = 0,
        stop: int | None = None,
    ) -> Download:
        """The bytes of the result. Raises `NotFound` if the step failed and left nothing."""
        envelope = await self._executions.get_result(identity, execution_id, step)
        _check_not_failed(envelope, execution_id, step)
        reference = envelope.reference
        results = await self.open_results(identity, reference)
        if reference is not None:
            await self._check_expiry(identity, reference)
        return await results.download(reference, format, start, stop)

    @needs(Permission.READ)
    async def open_stored_value(self, identity: Identity, reference: Reference) -> Download:
        """A stored value as JSON.

        Older references have no id, only an address: whether they have expired cannot be checked.
        """
        results = await self.open_results(identity, reference)
        if reference.ref_id:
            await self._check_expiry(identity, reference)
        return await results.download(reference, "json")

    @needs(Permission.READ)
    async def open_results(self, identity: Identity, reference: Reference | None) -> Results:
        """The port to stored results, after a check of the caller's access to this reference.

        A step's result may belong to another execution: a child, or the one it was inherited from.
        """
        if reference is not None:
            await self._access.check_reference(identity, reference)
        if self._results is None:
            raise NoStore(
                "this server has no access to the result store",
                hint="noetl result shows it on a machine that has: same NOETL_HOME, or the same NOETL_STORAGE_CLOUD_TIER",
            )
        return self._results(identity.tenant)


def _describe_lifetime(lifetime: Lifetime) -> tuple[str, str | None]:
    """Its scope, and how long the result is to stay."""
    if lifetime.ttl is None:
        return lifetime.scope, None
    return lifetime.scope, durations.write_duration(lifetime.ttl)


def _check_not_failed(envelope: Envelope, execution_id: ExecutionId, step: str) -> None:
    """Raise `NotFound` if the step failed and left no result."""
    error = envelope.error
    if error is not None and envelope.reference is None:
        raise NotFound(
            f"step {step} failed and left no result: {error.code}: {error.message}",
            hint=f"noetl exec explain {execution_id} {step} says more; noetl exec retry {execution_id} runs it again",
        )
