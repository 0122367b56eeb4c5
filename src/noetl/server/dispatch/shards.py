"""The shards that this server owns, and the duty that renews its lease and takes its fair share.

Ownership here is only a belief: the epoch decides at every append. Each run reads the lease rows
back, so a lost reply leaves no shard with an owner that does not know of it.
"""

import asyncio
import logging
from collections.abc import Callable
from math import ceil

from noetl.faults import hit_fault_point
from noetl.leases.port import Leases, Runtime
from noetl.model.errors import StoreUnavailable
from noetl.model.ids import ExecutionId, Snowflakes, shard_of
from noetl.server.clock import StoreClock
from noetl.server.duties.loop import Counts
from noetl.server.settings import ServerSettings

log = logging.getLogger(__name__)


class OwnedShards:
    """The owned shards with their epochs. Calls `on_change` for every shard that comes or goes."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._epochs: dict[int, int] = {}
        self.confirmed_at = float("-inf")  # loop time of the last read of the owners from the store
        self.on_change: list[Callable[[int], None]] = []

    def find_shard(self, execution_id: ExecutionId) -> int:
        return shard_of(execution_id, self.count)

    def owns(self, shard: int) -> bool:
        return shard in self._epochs

    def copy_epochs(self) -> dict[int, int]:
        return dict(self._epochs)

    def list_owned(self) -> list[int]:
        return sorted(self._epochs)

    def adopt(self, shard: int, epoch: int) -> None:
        if self._epochs.get(shard) != epoch:
            self._epochs[shard] = epoch
            self._notify_change(shard)

    def drop(self, shard: int, epoch: int | None = None) -> None:
        """Drop the shard. With `epoch`: only if it still has that one, and was not taken again."""
        if shard in self._epochs and epoch in (None, self._epochs[shard]):
            del self._epochs[shard]
            self._notify_change(shard)

    def _notify_change(self, shard: int) -> None:
        for hear in self.on_change:
            hear(shard)


class ShardKeeper:
    """The duty that renews this server's lease and balances the shards between servers."""

    name = "shards"

    def __init__(
        self, leases: Leases, shards: OwnedShards, clock: StoreClock, settings: ServerSettings
    ) -> None:
        self._leases = leases
        self._shards = shards
        self._clock = clock
        self._settings = settings
        self._runtime: Runtime | None = None
        self._ids: Snowflakes | None = None
        self._renewed_at = 0.0
        self.on_register: Callable[[int], None] | None = None  # called with each new runtime id

    def new_id(self) -> ExecutionId:
        if self._ids is None:
            raise StoreUnavailable(
                "this server has no node number yet", hint="try again in a moment"
            )
        return ExecutionId(self._ids.draw_id(self._clock.now()))

    @property
    def runtime_id(self) -> int | None:
        """None while this server has no lease."""
        return None if self._runtime is None else self._runtime.runtime_id

    async def run_once(self) -> Counts:
        runtime = await self._hold_lease()
        self._clock.add_sample(await self._leases.read_clock())
        await self._read_owners(runtime)
        return Counts(await self._balance_shards(runtime))

    async def close(self) -> None:
        """Give up the lease at once instead of letting it run out."""
        for shard in self._shards.list_owned():
            self._shards.drop(shard)
        if self._runtime is not None:
            await self._leases.leave_cluster(self._runtime.runtime_id)

    async def _hold_lease(self) -> Runtime:
        """Renew the lease if it is due; register this server if it has none or lost it."""
        settings = self._settings
        now = asyncio.get_running_loop().time()
        if self._runtime is not None and now - self._renewed_at < settings.renew_every:
            return self._runtime
        if self._runtime is not None:
            runtime_id = self._runtime.runtime_id
            if not await self._leases.renew(runtime_id, settings.lease):
                log.warning("lease lost", extra={"runtime_id": runtime_id})
                self._runtime = None
                for shard in self._shards.list_owned():
                    self._shards.drop(shard)
        if self._runtime is None:
            self._runtime = await self._leases.register(
                settings.name, settings.address, settings.lease
            )
            self._ids = Snowflakes(self._runtime.node)
            if self.on_register is not None:
                self.on_register(self._runtime.runtime_id)
        self._renewed_at = now
        return self._runtime

    async def _read_owners(self, runtime: Runtime) -> None:
        """Adopt and drop shards so that they match the lease rows."""
        asked_at = asyncio.get_running_loop().time()
        owners = await self._leases.list_owners()
        mine = {
            owner.shard: owner.epoch for owner in owners if owner.runtime_id == runtime.runtime_id
        }
        for shard in self._shards.list_owned():
            if shard not in mine:
                self._shards.drop(shard)
        for shard, epoch in mine.items():
            self._shards.adopt(shard, epoch)
        self._shards.confirmed_at = asked_at

    async def _balance_shards(self, runtime: Runtime) -> int:
        """Claim shards up to the fair share, and release those beyond it. Returns how many."""
        servers = max(1, await self._leases.count_servers())
        share = ceil(self._shards.count / servers)
        owned = self._shards.list_owned()
        if len(owned) > share:
            excess = owned[share:]
            for shard in excess:
                self._shards.drop(shard)
            await self._leases.release_shards(runtime.runtime_id, excess)
            return len(excess)
        if len(owned) == share:
            return 0
        claimed = await self._leases.claim(runtime.runtime_id, share - len(owned))
        if claimed:
            hit_fault_point("takeover.after")
        for claim in claimed:
            self._shards.adopt(claim.shard, claim.epoch)
        return len(claimed)
