"""Makes the settings of a server from those of the process."""

import os
import socket

from noetl import settings
from noetl.playbook.workload import readable_environment
from noetl.runtime.clock import to_micros
from noetl.runtime.issuer import make_issuer_settings
from noetl.server.settings import ServerSettings

MAX_SWEEP_INTERVAL_S = 60.0  # seconds between a server's searches for expired results
DAY_S = 86_400.0
MIN_SNAPSHOT_AGE_S = (
    DAY_S  # snapshots stay at least this long, for those who look at old executions
)


def make_server_settings(
    count: int, address: str | None = None, time_slice_s: float | None = None
) -> ServerSettings:
    shards = settings.read_settings(settings.ShardSettings)
    duties = settings.read_settings(settings.DutySettings)
    storage = settings.read_settings(settings.StorageSettings)
    retention = None
    if storage.storage_retention_sec is not None:
        retention = to_micros(storage.storage_retention_sec)
    events = settings.read_settings(settings.RetentionSettings)
    listen = settings.read_settings(settings.ListenSettings)
    snapshot_age_s = max(events.retention_days * DAY_S, MIN_SNAPSHOT_AGE_S)
    return ServerSettings(
        name=f"{socket.gethostname()}-{os.getpid()}",
        address=address,
        time_slice_s=time_slice_s,
        allowed_hosts=listen.all_hosts,
        public_url=listen.public_url,
        issuer=make_issuer_settings(settings.read_settings(settings.OidcSettings)),
        shards=count,
        lease=to_micros(shards.lease_sec),
        renew_every=shards.heartbeat_sec,
        projector_interval=duties.projection_poll_ms / 1000,
        sweep_interval=min(MAX_SWEEP_INTERVAL_S, storage.storage_sweep_sec),
        grace=to_micros(storage.storage_orphan_age_sec),
        retention=retention,
        snapshot_age=to_micros(snapshot_age_s),
        env=readable_environment(os.environ),
    )
