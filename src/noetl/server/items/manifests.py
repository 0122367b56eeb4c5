"""The lists of parts in which the results of loops are: which run they are of, and what it ran over."""

from typing import NamedTuple

from noetl.log.events.port import EventLog
from noetl.model import events as e
from noetl.model.event_groups import GROUP_BITS
from noetl.model.ids import ExecutionId
from noetl.model.reference import Reference, parse_uri
from noetl.server.results.origins import MANIFEST_FORMAT, TenantManifests

BEFORE_FIRST_PART = -(1 << 31)
MAX_SEARCHED_LOOPS = 2_000  # events among which the start of a loop is looked for
LOOP_EVENTS_PER_READ = 200


class LoopManifest(NamedTuple):
    """The list of the parts of one run of a loop. The run may be one of an earlier execution."""

    execution_id: ExecutionId
    name: str


class EarlierRun(NamedTuple):
    """The run of a loop that a later one repeats. `only`: the items that the later one was limited
    to; empty if it ran all that had not finished."""

    manifest: LoopManifest
    only: tuple[int, ...]


def parse_manifest(reference: Reference) -> LoopManifest | None:
    """The manifest that a reference names; None if it names something else."""
    if reference.format != MANIFEST_FORMAT:
        return None
    address = parse_uri(reference.uri)
    return LoopManifest(address.execution_id, address.key)


async def find_earlier_run(manifests: TenantManifests, manifest: LoopManifest) -> EarlierRun | None:
    """The run that this one repeats: its manifest is the first part of this one."""
    parts = await manifests.read_manifest_page(manifest.name, BEFORE_FIRST_PART, 1)
    if not parts:
        return None
    earlier = parse_manifest(parts[0].reference)
    return None if earlier is None else EarlierRun(earlier, parts[0].only)


async def read_collection(log: EventLog, manifest: LoopManifest) -> e.Collection | None:
    """What the run looped over, as the event of its start says. None if it is not found among the
    first loops of its execution."""
    after = 0
    for _ in range(MAX_SEARCHED_LOOPS // LOOP_EVENTS_PER_READ):
        page = await log.read_grouped_events(
            manifest.execution_id, GROUP_BITS["loops"], after=after, limit=LOOP_EVENTS_PER_READ
        )
        if not page:
            return None
        for recorded in page:
            event = recorded.event
            if isinstance(event, e.LoopStarted) and event.activation == manifest.name:
                return event.collection
        after = page[-1].seq
    return None
