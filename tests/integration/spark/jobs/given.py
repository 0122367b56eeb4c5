"""A log of executions that ended weeks ago, and a death at a named point."""

import time

from bench.grown import grow
from noetl.database import connect
from noetl.migrations import migrate

EXECUTIONS = 40
DAY = 86_400_000_000


async def fill(dsn: str) -> None:
    connection = await connect(dsn)
    await migrate(connection, shards=4)
    await connection.close()
    now = time.time_ns() // 1_000
    grow(dsn, EXECUTIONS, now - 40 * DAY, now - 35 * DAY, length=4)


class Died(BaseException):
    """What a kill would have been: nobody may handle it."""
