"""Expires results after their lifetime, and deletes small payloads that no report ever named, and
snapshots of executions that ended long ago.

docs/storage.md says which results expire and when.
"""

import logging

from noetl.log.lifetimes.port import ResultLifetimes
from noetl.log.snapshots.port import SnapshotStore
from noetl.model.ids import Micros
from noetl.server.duties.loop import Counts

log = logging.getLogger(__name__)

MAX_SWEPT_EXECUTIONS = 50  # checked in one run
MAX_SWEPT_SNAPSHOTS = 500  # deleted in one run


class Sweeper:
    name = "sweeper"

    def __init__(
        self,
        lifetimes: ResultLifetimes,
        snapshots: SnapshotStore,
        grace: Micros,
        retention: Micros | None,
        snapshot_age: Micros,
    ) -> None:
        self._lifetimes = lifetimes
        self._snapshots = snapshots
        self._grace = grace
        self._retention = retention
        self._snapshot_age = snapshot_age

    async def run_once(self) -> Counts:
        results = await self._sweep_results()
        deleted = await self._snapshots.delete_old_snapshots(
            self._snapshot_age, MAX_SWEPT_SNAPSHOTS
        )
        if deleted:
            log.info("old snapshots deleted", extra={"snapshots": deleted})
        has_more = results.has_more or deleted == MAX_SWEPT_SNAPSHOTS
        return Counts(results.done + deleted, has_more=has_more)

    async def _sweep_results(self) -> Counts:
        judged = await self._lifetimes.expire_results(
            self._grace, self._retention, MAX_SWEPT_EXECUTIONS
        )
        done = judged.expired + judged.swept
        if done:
            log.info("results expired", extra={"expired": judged.expired, "orphans": judged.swept})
        return Counts(done, has_more=judged.looked >= MAX_SWEPT_EXECUTIONS)
