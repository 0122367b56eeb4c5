"""Expires results after their lifetime, and deletes small payloads that no report ever named.

docs/storage.md says which results expire and when.
"""

import logging

from noetl.log.lifetimes.port import ResultLifetimes
from noetl.model.ids import Micros
from noetl.server.duties.loop import Counts

log = logging.getLogger(__name__)

MAX_SWEPT_EXECUTIONS = 50  # checked in one run


class Sweeper:
    name = "sweeper"

    def __init__(self, lifetimes: ResultLifetimes, grace: Micros, retention: Micros | None) -> None:
        self._lifetimes = lifetimes
        self._grace = grace
        self._retention = retention

    async def run_once(self) -> Counts:
        judged = await self._lifetimes.expire_results(
            self._grace, self._retention, MAX_SWEPT_EXECUTIONS
        )
        done = judged.expired + judged.swept
        if done:
            log.info("results expired", extra={"expired": judged.expired, "orphans": judged.swept})
        return Counts(done, has_more=judged.looked >= MAX_SWEPT_EXECUTIONS)
