"""The payloads of a result, and the metadata of the tasks that made them.

The key of a payload names its command, and so the events that may have reported it.
"""

from collections.abc import Iterable, Iterator

from noetl.log.events.port import EventLog, EventName
from noetl.model.decisions import AddPart
from noetl.model.envelope import Envelope, Meta
from noetl.model.ids import RefId, Tenant
from noetl.model.reference import Reference, parse_result_key, parse_uri

MANIFEST_FORMAT = "manifest"


class TenantManifests:
    """The manifests of a tenant. A forged reference may name one of another tenant, which is empty
    here."""

    def __init__(self, log: EventLog, tenant: Tenant) -> None:
        self._log = log
        self._tenant = tenant

    async def read_manifest(self, manifest: str) -> list[AddPart]:
        return await self._log.read_manifest(self._tenant, manifest)

    async def read_manifest_page(self, manifest: str, after: int, limit: int) -> list[AddPart]:
        return await self._log.read_manifest_page(self._tenant, manifest, after, limit)

    async def find_parts_before(self, manifest: str, position: int, limit: int) -> list[AddPart]:
        return await self._log.find_parts_before(self._tenant, manifest, position, limit)

    async def find_failed_parts(self, manifest: str, after: int, limit: int) -> list[AddPart]:
        return await self._log.find_failed_parts(self._tenant, manifest, after, limit)


async def list_payloads(manifests: TenantManifests, reference: Reference) -> list[Reference]:
    """The payloads of a result: the reference itself, or the parts of a manifest.

    The manifest of a retried loop has the earlier manifest as a part.
    """
    if reference.format != MANIFEST_FORMAT:
        return [reference]
    parts = await manifests.read_manifest(reference.uri.rpartition("/")[2])
    found: list[Reference] = []
    for part in parts:
        found += await list_payloads(manifests, part.reference)
    return found


async def read_metas(log: EventLog, references: Iterable[Reference]) -> dict[RefId, Meta]:
    """The metadata of payloads, from the envelopes in which they were reported.

    A payload without an envelope of its own gets only the tool of its command's envelope.
    """
    keys = {reference.ref_id: list(_list_event_keys(reference)) for reference in references}
    named = {ref_id for ref_id, reference_keys in keys.items() if reference_keys}
    all_keys = [key for reference_keys in keys.values() for key in reference_keys]
    events = await log.read_named_events(all_keys, named)
    envelopes = {
        EventName(recorded.execution_id, recorded.event.key): _get_envelope(recorded.event)
        for recorded in events
    }
    found: dict[RefId, Meta] = {}
    for ref_id, reference_keys in keys.items():
        candidates = [envelopes.get(key) for key in reference_keys]
        reported = [envelope for envelope in candidates if envelope is not None]
        own = [
            envelope
            for envelope in reported
            if envelope.reference is not None and envelope.reference.ref_id == ref_id
        ]
        if own and own[0].meta is not None:
            found[ref_id] = own[0].meta
        elif reported and reported[-1].meta is not None:
            found[ref_id] = Meta(tool=reported[-1].meta.tool)
    return found


def _list_event_keys(reference: Reference) -> Iterator[EventName]:
    """The keys of the events that may have reported it; the end of the command comes last."""
    where = parse_uri(reference.uri)
    origin = parse_result_key(where.key)
    if origin is None:
        return
    run = f"{origin.command_id}:{origin.task}:{origin.run}"
    if origin.page:
        yield EventName(where.execution_id, f"page:{run}:{origin.page}")
    yield EventName(where.execution_id, f"task:{run}")
    yield EventName(where.execution_id, f"command:{origin.command_id}:end")


def _get_envelope(event: object) -> Envelope | None:
    result = getattr(event, "result", None)
    return result if isinstance(result, Envelope) else None
