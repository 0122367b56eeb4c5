"""Which payloads a result has, and who made them: found by the key, which names the command, in the event that reported it."""

from collections.abc import Iterable, Iterator

from noetl.log.port import EventLog
from noetl.model.envelope import Envelope, Meta
from noetl.model.ids import ExecutionId, RefId
from noetl.model.reference import Reference, made_by, parse_uri

MANIFEST = "manifest"


async def payloads(log: EventLog, reference: Reference) -> list[Reference]:
    """A manifest is no payload: its parts are. One that was retried begins with the manifest before it."""
    if reference.format != MANIFEST:
        return [reference]
    parts = await log.parts(reference.uri.rpartition("/")[2])
    return [payload for part in parts for payload in await payloads(log, part.reference)]


async def metas(log: EventLog, references: Iterable[Reference]) -> dict[RefId, Meta]:
    """What their envelopes say of them. Of a payload without an envelope of its own: what its command's says of the tool."""
    keys = {reference.ref_id: list(_keys(reference)) for reference in references}
    events = await log.named_events([key for each in keys.values() for key in each])
    envelopes = {
        (recorded.execution_id, recorded.event.key): _envelope(recorded.event)
        for recorded in events
    }
    found: dict[RefId, Meta] = {}
    for ref_id, names in keys.items():
        reported = [envelope for name in names if (envelope := envelopes.get(name)) is not None]
        own = [
            each
            for each in reported
            if each.reference is not None and each.reference.ref_id == ref_id
        ]
        if own and own[0].meta is not None:
            found[ref_id] = own[0].meta
        elif reported and reported[-1].meta is not None:
            found[ref_id] = Meta(tool=reported[-1].meta.tool)
    return found


def _keys(reference: Reference) -> Iterator[tuple[ExecutionId, str]]:
    """Of the events that may have reported it; the command's end is the last."""
    where = parse_uri(reference.uri)
    made = made_by(where.key)
    if made is None:
        return
    if made.page:
        yield where.execution_id, f"page:{made.command_id}:{made.task}:{made.run}:{made.page}"
    yield where.execution_id, f"task:{made.command_id}:{made.task}:{made.run}"
    yield where.execution_id, f"command:{made.command_id}:end"


def _envelope(event: object) -> Envelope | None:
    found = getattr(event, "result", None)
    return found if isinstance(found, Envelope) else None
