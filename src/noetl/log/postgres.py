"""The Postgres adapters of all ports over one database.

Each of their methods is one statement, so it is one transaction and one round trip. Duties use the
background pool, so neither a slow projection nor a long inbox delays an append or a claim.
"""

from noetl.log.events.cold import HistoryFiles
from noetl.log.events.postgres import LogPostgres
from noetl.log.inbox.postgres import InboxPostgres
from noetl.log.lifetimes.postgres import LifetimesPostgres
from noetl.log.lineage.postgres import LineagePostgres
from noetl.log.payloads.postgres import PayloadsPostgres
from noetl.log.playbook_state.postgres import PlaybookStatePostgres
from noetl.log.presence.postgres import PresencePostgres
from noetl.log.projections.postgres import ProjectionsPostgres
from noetl.log.queue.postgres import SWEEP_EVERY_RUNS, QueuePostgres
from noetl.log.snapshots.postgres import SnapshotsPostgres
from noetl.log.step_logs.postgres import StepLogsPostgres
from noetl.log.stores import Stores
from noetl.log.tenant_usage.postgres import UsagePostgres
from noetl.postgres.pool import Database


def make_postgres_stores(
    database: Database,
    shards: int,
    *,
    sweep_every: int = SWEEP_EVERY_RUNS,
    lake: HistoryFiles | None = None,
    time_slice_s: float | None = None,
) -> Stores:
    """`shards` must be the number that the database was created with; `migrate` returns it.

    `sweep_every`: finished commands are deleted in every so many runs of the reaper. `lake` holds
    the events that were moved to files. `time_slice_s`: seconds of computing before other tasks get
    a turn.
    """
    return Stores(
        log=LogPostgres(database, shards, lake, time_slice_s),
        inbox=InboxPostgres(database, shards),
        queue=QueuePostgres(database, sweep_every),
        projections=ProjectionsPostgres(database, time_slice_s),
        payloads=PayloadsPostgres(database),
        lifetimes=LifetimesPostgres(database),
        lineage=LineagePostgres(database),
        step_logs=StepLogsPostgres(database),
        presence=PresencePostgres(database),
        state=PlaybookStatePostgres(database),
        snapshots=SnapshotsPostgres(database),
        usage=UsagePostgres(database),
    )
