"""How one worker behaves. Times are seconds of the event loop."""

from dataclasses import dataclass

from noetl.model.commands import DEFAULT_POOL
from noetl.model.envelope import CONTEXT_LIMIT
from noetl.model.exchange import SELF_DEADLINE


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    worker_id: str  # stable over restarts
    incarnation: str  # another for every start
    pools: tuple[str, ...] = (DEFAULT_POOL,)
    slots: int = 8  # commands at once
    # How long a server may keep a poll that has nothing to give. A lease counts from when the poll was sent, the one moment that
    # is surely not after it began; so a poll is short against the deadline, and what comes later than that is not begun.
    poll: float = 1.5
    heartbeat: float = 1.5  # between exchanges while commands are held; a lost one leaves time for another before the deadline
    patience: float = 2.0  # for the answer to an exchange that does not wait
    deadline: float = SELF_DEADLINE / 1_000_000  # without renewal the worker stops a tool itself
    longest_wait: float = (
        0.5  # for room; what was fetched ahead goes back then, for whoever has some
    )
    notice: float = 1.0  # a tool that still runs then is announced
    chunk_notice: float = (
        5.0  # items of a loop are seen as they end: that their command runs says little
    )
    shortest_delay: float = 0.05  # after a failed exchange; doubles
    longest_delay: float = 2.0
    plans: int = 128  # compiled playbooks kept
    context_limit: int = CONTEXT_LIMIT  # bytes of what an event may say of a result
