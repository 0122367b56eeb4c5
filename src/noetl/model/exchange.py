"""The worker protocol: a worker sends reports, the server answers with commands,
cancellations and acknowledgements."""

from typing import Literal

from msgspec import Struct

from noetl.model.commands import DEFAULT_POOL, Command
from noetl.model.ids import DEFAULT_TENANT, CommandId, Micros, Tenant
from noetl.model.messages import Report, StoredRef

LEASE_MICROS: Micros = 6_000_000
RENEW_INTERVAL_MICROS: Micros = 2_000_000
SELF_STOP_MICROS: Micros = 4_000_000  # without renewal for this time, a worker stops its tools
MAX_PROGRESS_CHARS = 200  # characters of a progress text
MAX_EXCHANGE_BYTES = 4 * 1024 * 1024  # bytes


def make_holder_name(worker: str, incarnation: str) -> str:
    """The holder of a lease: one incarnation of a worker."""
    return f"{worker}/{incarnation}"


class LeaseKey(Struct, frozen=True):
    command_id: CommandId
    attempt: int


class Progress(Struct, frozen=True):
    """The progress of a tool, as a text that the tool wrote."""

    held: LeaseKey
    said: str


class ExchangeRequest(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """`held` lists the commands that the worker works on.

    `renew` extends leases, asks for the commands to stop, and asks for leased commands that are not
    in `held`: those are sent again as the same attempt. Without `renew` the server does not ask the
    store about leases.
    """

    worker: str
    incarnation: str
    pools: tuple[str, ...] = (DEFAULT_POOL,)
    free: int = 0
    held: tuple[LeaseKey, ...] = ()
    reports: tuple[Report, ...] = ()
    logs: tuple[StoredRef, ...] = ()  # the last output of reported commands, stored before reports
    wait: Micros = 0
    renew: bool = True
    progress: tuple[Progress, ...] = ()  # sent with a renewal, shown until the next one

    @property
    def holder(self) -> str:
        return make_holder_name(self.worker, self.incarnation)


class Ack(Struct, frozen=True):
    """The answer to one report, by its key. ok: it is recorded. stale: stop that tool. refused:
    never repeat the report. retry: send it again later."""

    command_id: CommandId
    key: str
    status: Literal["ok", "stale", "refused", "retry"]
    message: str | None = None
    attempt: int = 0  # of the report, because the endings of two attempts have the same key
    code: str | None = None  # of a refusal: the code of the step's failure


class ExchangeReply(Struct, frozen=True, omit_defaults=True, kw_only=True):
    acks: tuple[Ack, ...] = ()
    commands: tuple[Command, ...] = ()
    stop: tuple[LeaseKey, ...] = ()  # cancelled, or no longer leased to this worker
    renewed: bool = True
    logged: bool = True  # the logs are stored or dropped for good: do not send them again
    tenant: Tenant = DEFAULT_TENANT  # of the worker, as its token says
