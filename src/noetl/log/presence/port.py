"""The contract of presence: which workers were seen recently, and by which server."""

from typing import Protocol

from msgspec import Struct

from noetl.model.ids import Micros, Tenant


class WorkerPresence(Struct, frozen=True, kw_only=True):
    """One incarnation of a worker, as the server it last contacted knows it. `age` is the time
    since then.
    """

    worker: str  # `name/incarnation`: the holder of its leases
    server: str
    tenant: Tenant
    pools: tuple[str, ...] = ()
    free: int = 0
    held: int = 0
    age: Micros = 0


class WorkerDirectory(Protocol):
    async def note_worker(self, worker: WorkerPresence, lease: Micros) -> None:
        """Record that the worker made contact now. The row is kept for `lease`."""
        ...

    async def list_workers(self, tenant: Tenant) -> list[WorkerPresence]:
        """The known workers, by name."""
        ...
