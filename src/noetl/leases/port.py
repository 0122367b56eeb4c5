"""The contract of ownership. `claim` raises the epoch, so that whatever the former owner still sends is refused."""

from typing import Protocol

from msgspec import Struct

from noetl.model.ids import Micros


class Runtime(Struct, frozen=True):
    """One running server. `node` is its number in snowflakes while the lease holds."""

    runtime_id: int
    node: int
    name: str
    address: str | None = None


class Claimed(Struct, frozen=True):
    shard: int
    epoch: int


class Owner(Struct, frozen=True):
    shard: int
    epoch: int
    runtime_id: int | None
    address: str | None


class Leases(Protocol):
    async def now(self) -> Micros: ...  # the store's clock
    async def register(self, name: str, address: str | None, lease: Micros) -> Runtime: ...
    async def renew(
        self, runtime_id: int, lease: Micros
    ) -> bool: ...  # False: the lease had run out; register again
    async def servers(self) -> int: ...  # with a lease that holds
    async def claim(
        self, runtime_id: int, limit: int
    ) -> list[Claimed]: ...  # free shards, or those of a dead owner
    async def release(self, runtime_id: int, shards: list[int]) -> None: ...
    async def leave(
        self, runtime_id: int
    ) -> None: ...  # its shards and its lease are given up: it is no server any more
    async def owners(self) -> list[Owner]: ...
    async def take(
        self, runtime_id: int, duty: str, every: Micros
    ) -> bool: ...  # to be done by one server at a time; False: another living one is at it, or it was done not so long ago
    async def done(self, runtime_id: int, duty: str) -> None: ...
