"""What one server can be told. Plain values: they are read from the environment elsewhere, once."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from noetl.model.exchange import LEASE, RENEW_EVERY
from noetl.model.ids import Micros


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Intervals are seconds of the event loop; leases are the store's time."""

    name: str = "server"
    address: str | None = None
    shards: int = 16  # as many as the database was made with
    lease: Micros = LEASE
    renew_every: float = (
        RENEW_EVERY / 1e6
    )  # also when the store is not there: the lease must not lapse over it
    shard_interval: float = 0.5
    inbox_interval: float = 0.5  # without a hint
    timer_interval: float = 0.2
    reaper_interval: float = 0.5
    projector_interval: float = 0.1
    schedule_interval: float = 0.5
    sweep_interval: float | None = None  # None: results are looked after elsewhere
    grace: Micros = 86_400_000_000  # how long an execution must be over before anything of it goes
    retention: Micros | None = (
        None  # how long results stay after that which say nothing else; None: for ever
    )
    job_interval: float = 60.0  # looks whether a job over the log is due
    poll_interval: float = 0.5  # how often a waiting worker looks for commands without a hint
    read_limit: int = 200  # rows that a duty takes at once
    at_a_stretch: float | None = (
        None  # computing until requests that wait get a turn; None: nobody asks while others work
    )
    states: int = 10_000  # executions kept in memory
    plans: int = 500  # playbooks kept in memory
    env: Mapping[str, str] = field(default_factory=dict)  # what `env.*` of workload defaults reads
