"""The contract of shard ownership. `claim` raises the epoch, so that the log refuses appends of the
former owner."""

from typing import Protocol

from msgspec import Struct

from noetl.model.ids import Micros


class Runtime(Struct, frozen=True):
    """One running server. `node` is its number in snowflakes while its lease holds."""

    runtime_id: int
    node: int
    name: str
    address: str | None = None


class ClaimedShard(Struct, frozen=True):
    """A shard that a server owns from now on, with its new epoch."""

    shard: int
    epoch: int


class Owner(Struct, frozen=True):
    """The owner of a shard. `runtime_id` is None if no living server owns it."""

    shard: int
    epoch: int
    runtime_id: int | None
    address: str | None


class Leases(Protocol):
    async def read_clock(self) -> Micros:
        """The time of the store's clock."""
        ...

    async def register(self, name: str, address: str | None, lease: Micros) -> Runtime:
        """Register a server with a lease and a node number of its own."""
        ...

    async def renew(self, runtime_id: int, lease: Micros) -> bool:
        """Extend the lease of a server. False if it had run out: register again."""
        ...

    async def count_servers(self) -> int:
        """The number of servers with a valid lease."""
        ...

    async def claim(self, runtime_id: int, limit: int) -> list[ClaimedShard]:
        """Take up to `limit` shards that are free or have a dead owner."""
        ...

    async def release_shards(self, runtime_id: int, shards: list[int]) -> None:
        """Give up these shards, as far as the server owns them."""
        ...

    async def leave_cluster(self, runtime_id: int) -> None:
        """Give up the lease and all shards of a server that ends."""
        ...

    async def list_owners(self) -> list[Owner]:
        """The owner of every shard."""
        ...

    async def take_duty(self, runtime_id: int, duty: str, every: Micros) -> bool:
        """Take a duty that one server at a time does. False if another living server is doing it,
        or if it was done less than `every` ago."""
        ...

    async def finish_duty(self, runtime_id: int, duty: str) -> None:
        """Record that the server has done the duty."""
        ...
