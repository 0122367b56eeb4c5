"""The memory twins of all ports over one set of tables."""

from noetl.log.events.memory import LogMemory
from noetl.log.inbox.memory import InboxMemory
from noetl.log.lifetimes.memory import LifetimesMemory
from noetl.log.lineage.memory import LineageMemory
from noetl.log.payloads.memory import PayloadsMemory
from noetl.log.playbook_state.memory import PlaybookStateMemory
from noetl.log.presence.memory import PresenceMemory
from noetl.log.projections.memory import ProjectionsMemory
from noetl.log.queue.memory import QueueMemory
from noetl.log.snapshots.memory import SnapshotsMemory
from noetl.log.step_logs.memory import StepLogsMemory
from noetl.log.stores import Stores
from noetl.log.tables import MemoryDatabase
from noetl.log.tenant_usage.memory import UsageMemory


def make_memory_stores(database: MemoryDatabase) -> Stores:
    return Stores(
        log=LogMemory(database),
        inbox=InboxMemory(database),
        queue=QueueMemory(database),
        projections=ProjectionsMemory(database),
        payloads=PayloadsMemory(database),
        lifetimes=LifetimesMemory(database),
        lineage=LineageMemory(database),
        step_logs=StepLogsMemory(database),
        presence=PresenceMemory(database),
        state=PlaybookStateMemory(database),
        snapshots=SnapshotsMemory(database),
        usage=UsageMemory(database),
    )
