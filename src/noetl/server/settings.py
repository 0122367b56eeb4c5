"""The settings of one server, as plain values. `noetl.settings` reads the environment."""

from collections.abc import Mapping

from msgspec import Struct, field

from noetl.model.exchange import LEASE_MICROS, RENEW_INTERVAL_MICROS
from noetl.model.ids import Micros
from noetl.server.oidc.port import IssuerSettings


class ServerSettings(Struct, frozen=True):
    """Intervals are in seconds of the event loop, leases in microseconds of the store's clock."""

    name: str = "server"
    address: str | None = None
    shards: int = 16  # must be the number that the database was made with
    lease: Micros = LEASE_MICROS
    # seconds between renewals of the server's lease; while the store is unavailable, tries are at
    # most half of it apart, so that the lease does not lapse
    renew_every: float = RENEW_INTERVAL_MICROS / 1e6
    shard_interval: float = 0.5
    inbox_interval: float = 0.5  # a hint makes it shorter
    timer_interval: float = 0.2
    reaper_interval: float = 0.5
    lost_worker_interval: float = 0.2
    projector_interval: float = 0.1
    # between two writes of the row of an execution whose status stays; a change is seen after this
    # and the interval of the projector
    row_interval: float = 0.25
    schedule_interval: float = 0.5
    refused_calls_interval: float = 10.0  # between entries of refused calls in the audit trail
    snapshot_interval: float = 2.0  # between looks for long executions without snapshots
    sweep_interval: float | None = None  # None: this server does not expire results
    grace: Micros = 86_400_000_000  # results stay at least this long after their execution's end
    # results without a lifetime of their own stay this long after the end of their execution;
    # None: for ever
    retention: Micros | None = None
    # snapshots of executions stay this long after the end of their execution, and after a look at it
    snapshot_age: Micros = 30 * 86_400_000_000
    job_interval: float = 60.0  # between checks whether a job over the log is due
    poll_interval: float = 0.5  # between claims for a waiting worker without a hint
    read_limit: int = 200  # rows that a duty reads at once
    # seconds of computing until waiting requests get a turn of the event loop; None: no limit,
    # for processes that answer no requests meanwhile
    time_slice_s: float | None = None
    allowed_hosts: tuple[str, ...] = ()  # beside loopback names and the own address
    public_url: str | None = None  # of the page in browsers; None: as the request says
    issuer: IssuerSettings | None = None  # that signs users in
    states: int = 10_000  # executions cached in memory
    rows: int = 2_000  # projection rows cached in memory
    plans: int = 500  # compiled playbooks cached in memory
    env: Mapping[str, str] = field(default_factory=dict)  # for `env.*` in workload defaults
