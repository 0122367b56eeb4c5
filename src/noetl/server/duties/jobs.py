"""Runs a job over the log once an hour, on one server at a time.

The server does not know what the job does: the process that starts the server passes it in.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress

from noetl.leases.port import Leases
from noetl.model.errors import Unavailable
from noetl.model.ids import Micros
from noetl.server.dispatch.shards import ShardKeeper
from noetl.server.duties.loop import Counts

JOB_INTERVAL_US: Micros = 3_600_000_000
Run = Callable[[], Awaitable[None]]


class LakeJobDuty:
    """The duty that runs one job over the log."""

    def __init__(
        self,
        name: str,
        run: Run,
        leases: Leases,
        keeper: ShardKeeper,
    ) -> None:
        self.name = name
        self._run = run
        self._leases = leases
        self._keeper = keeper

    async def run_once(self) -> Counts:
        runtime_id = self._keeper.runtime_id
        if runtime_id is None or not await self._leases.take_duty(
            runtime_id, self.name, JOB_INTERVAL_US
        ):
            return Counts()
        try:
            await self._run()
        finally:
            with suppress(Unavailable):  # otherwise it is free when this server's lease ends
                await self._leases.finish_duty(runtime_id, self.name)
        return Counts(1)
