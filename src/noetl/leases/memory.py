"""Ownership of shards in memory: the twin of the runtime and shard rows in Postgres."""

from dataclasses import dataclass

from noetl.leases.port import ClaimedShard, Owner, Runtime
from noetl.model.clock import Clock
from noetl.model.errors import StoreUnavailable
from noetl.model.ids import Micros
from noetl.shard_rows import ShardRow

NODE_NUMBERS = 1024


@dataclass(slots=True)
class RuntimeRow:
    runtime: Runtime
    leased_until: Micros


@dataclass(slots=True)
class DutyRow:
    holder: int | None = None
    ran_at: Micros | None = None


class LeasesMemory:
    """The leases that all servers of a test or a simulation share, as they would share a
    database."""

    def __init__(self, shards: list[ShardRow], clock: Clock) -> None:
        self._shards = shards
        self._clock = clock
        self._runtimes: dict[int, RuntimeRow] = {}
        self._duties: dict[str, DutyRow] = {}
        self._last_id = 0

    async def read_clock(self) -> Micros:
        return self._clock.now()

    async def register(self, name: str, address: str | None, lease: Micros) -> Runtime:
        """Add a row for a server. A node number is reused only after all others have been used."""
        leased = {row.runtime.node for row in self._runtimes.values() if self._has_lease(row)}
        free = [number for number in range(NODE_NUMBERS) if number not in leased]
        if not free:
            raise StoreUnavailable(
                "every node number is leased", hint="wait for a lease to run out"
            )
        self._last_id += 1
        node = min(free, key=lambda number: (number - self._last_id) % NODE_NUMBERS)
        runtime = Runtime(self._last_id, node, name, address)
        self._runtimes[runtime.runtime_id] = RuntimeRow(runtime, self._clock.now() + lease)
        return runtime

    async def renew(self, runtime_id: int, lease: Micros) -> bool:
        row = self._runtimes.get(runtime_id)
        if row is None or not self._has_lease(row):
            return False
        row.leased_until = self._clock.now() + lease
        return True

    async def count_servers(self) -> int:
        return sum(self._has_lease(row) for row in self._runtimes.values())

    async def claim(self, runtime_id: int, limit: int) -> list[ClaimedShard]:
        """Take free shards. A server without a lease gets none, because its claim would be void."""
        if not self._is_runtime_alive(runtime_id):
            return []
        free = [shard for shard in self._shards if not self._is_runtime_alive(shard.owner)]
        claimed = free[: max(limit, 0)]
        for shard in claimed:
            shard.owner = runtime_id
            shard.epoch += 1
        return [ClaimedShard(shard.shard, shard.epoch) for shard in claimed]

    async def take_duty(self, runtime_id: int, duty: str, every: Micros) -> bool:
        row = self._duties.setdefault(duty, DutyRow())
        if row.ran_at is not None and row.ran_at > self._clock.now() - every:
            return False
        if self._is_runtime_alive(row.holder) or not self._is_runtime_alive(runtime_id):
            return False
        row.holder = runtime_id
        return True

    async def finish_duty(self, runtime_id: int, duty: str) -> None:
        row = self._duties.get(duty)
        if row is not None and row.holder == runtime_id:
            row.holder = None
            row.ran_at = self._clock.now()

    async def release_shards(self, runtime_id: int, shards: list[int]) -> None:
        for shard in shards:
            if self._shards[shard].owner == runtime_id:
                self._shards[shard].owner = None

    async def leave_cluster(self, runtime_id: int) -> None:
        await self.release_shards(runtime_id, list(range(len(self._shards))))
        row = self._runtimes.get(runtime_id)
        if row is not None:
            row.leased_until = min(row.leased_until, self._clock.now())

    async def list_owners(self) -> list[Owner]:
        return [self._find_owner(shard) for shard in self._shards]

    def _find_owner(self, shard: ShardRow) -> Owner:
        if shard.owner is None or not self._is_runtime_alive(shard.owner):
            return Owner(shard.shard, shard.epoch, None, None)
        address = self._runtimes[shard.owner].runtime.address
        return Owner(shard.shard, shard.epoch, shard.owner, address)

    def _is_runtime_alive(self, runtime_id: int | None) -> bool:
        if runtime_id is None or runtime_id not in self._runtimes:
            return False
        return self._has_lease(self._runtimes[runtime_id])

    def _has_lease(self, row: RuntimeRow) -> bool:
        return row.leased_until > self._clock.now()
