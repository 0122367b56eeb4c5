"""The ports of this package together, for the code that wires objects. Others ask for one port."""

from dataclasses import dataclass

from noetl.log.events.port import EventLog
from noetl.log.inbox.port import Inbox
from noetl.log.lifetimes.port import ResultLifetimes
from noetl.log.lineage.port import Lineage
from noetl.log.payloads.port import PayloadStore
from noetl.log.playbook_state.port import PlaybookStateStore
from noetl.log.presence.port import WorkerDirectory
from noetl.log.projections.port import Projections
from noetl.log.queue.port import CommandQueue
from noetl.log.snapshots.port import SnapshotStore
from noetl.log.step_logs.port import StepLogStore
from noetl.log.tenant_usage.port import UsageMeter


@dataclass(frozen=True, slots=True)
class Stores:
    """The ports over one database."""

    log: EventLog
    inbox: Inbox
    queue: CommandQueue
    projections: Projections
    payloads: PayloadStore
    lifetimes: ResultLifetimes
    lineage: Lineage
    step_logs: StepLogStore
    presence: WorkerDirectory
    state: PlaybookStateStore
    snapshots: SnapshotStore
    usage: UsageMeter
