"""The settings of one worker. Times are seconds of the event loop."""

from msgspec import Struct

from noetl.model.commands import DEFAULT_POOL
from noetl.model.envelope import MAX_CONTEXT_BYTES
from noetl.model.exchange import SELF_STOP_MICROS


class WorkerSettings(Struct, frozen=True):
    worker_id: str  # the same over restarts
    incarnation: str  # a new one for every start
    pools: tuple[str, ...] = (DEFAULT_POOL,)
    slots: int = 8  # commands at once
    # How long a server may keep a poll open without work. A lease counts from the moment the poll
    # was sent, because that is certainly not after the lease began. So a poll is short against the
    # deadline, and a command that arrives later than that is not started.
    poll: float = 1.5
    # Between exchanges while commands are held. If one is lost, there is time for another before
    # the deadline.
    heartbeat: float = 1.5
    patience: float = 2.0  # for the answer to an exchange that does not wait
    # Seconds without a renewal after which the worker stops a tool itself.
    deadline: float = SELF_STOP_MICROS / 1_000_000
    # For room. A command that was fetched ahead then goes back, for a worker that has room.
    longest_wait: float = 0.5
    notice: float = 1.0  # a tool that still runs after this time is announced
    # The same for chunks. Their items are reported as they end, so an announcement says little.
    chunk_notice: float = 5.0
    shortest_delay: float = 0.05  # after a failed exchange; doubles with each failure
    longest_delay: float = 2.0
    plans: int = 128  # compiled playbooks that are cached
    context_limit: int = MAX_CONTEXT_BYTES  # bytes of a result's context in an event
