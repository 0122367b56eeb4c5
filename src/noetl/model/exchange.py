"""The worker protocol: one call up with reports, one answer down with commands, cancellations and acknowledgements."""

from typing import Literal

from msgspec import Struct

from noetl.model.commands import DEFAULT_POOL, Command
from noetl.model.ids import CommandId, Micros
from noetl.model.messages import Report, StoredRef

LEASE: Micros = 6_000_000
RENEW_EVERY: Micros = 2_000_000
SELF_DEADLINE: Micros = 4_000_000  # a worker stops a tool itself after this long without renewal
PROGRESS = 200  # characters
EXCHANGE_LIMIT = 4 * 1024 * 1024


def holder(worker: str, incarnation: str) -> str:
    """Whose a lease is: leases belong to one life of a worker."""
    return f"{worker}/{incarnation}"


class LeaseKey(Struct, frozen=True):
    command_id: CommandId
    attempt: int


class Progress(Struct, frozen=True):
    """How far a tool is, in its own words."""

    held: LeaseKey
    said: str


class ExchangeRequest(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """`held` lists everything the worker works on; what is leased to it and not listed is sent again, same attempt. `renew` asks
    for that, for longer leases and for what is to be stopped; without it the store is not asked about leases."""

    worker: str
    incarnation: str
    pools: tuple[str, ...] = (DEFAULT_POOL,)
    free: int = 0
    held: tuple[LeaseKey, ...] = ()
    reports: tuple[Report, ...] = ()
    logs: tuple[
        StoredRef, ...
    ] = ()  # what the reported commands printed last: stored before their reports
    wait: Micros = 0
    renew: bool = True
    progress: tuple[Progress, ...] = ()  # goes with a renewal, and stands until the next one

    @property
    def holder(self) -> str:
        return holder(self.worker, self.incarnation)


class Ack(Struct, frozen=True):
    """Answer to one report, by its key: recorded; stale (stop that tool); refused (never repeat it); or try again later."""

    command_id: CommandId
    key: str
    status: Literal["ok", "stale", "refused", "retry"]
    message: str | None = None
    attempt: int = 0  # whose report: endings of two attempts have one key
    code: str | None = None  # of a refusal: what the step fails with


class ExchangeReply(Struct, frozen=True, omit_defaults=True, kw_only=True):
    acks: tuple[Ack, ...] = ()
    commands: tuple[Command, ...] = ()
    stop: tuple[LeaseKey, ...] = ()  # cancelled, or no longer this worker's
    renewed: bool = True
    logged: bool = True  # the logs are stored, or will never be
