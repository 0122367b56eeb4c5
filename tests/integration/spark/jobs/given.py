"""A log of executions that ended weeks ago, and ways to die over it."""

import signal
import subprocess
import sys
import time
from pathlib import Path

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


def killed(job: str, point: str, dsn: str, lake: Path) -> None:
    """The job in a process of its own, which dies there as by kill -9."""
    done = subprocess.run([sys.executable, "-c", DYING, job, point, dsn, str(lake)], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr


DYING = """
import os, signal, sys, time
from pathlib import Path
from noetl import faults
from noetl.spark.jobs.compact import compact
from noetl.spark.jobs.export import export

job, point, dsn, lake = sys.argv[1:]
faults.install(lambda name: os.kill(os.getpid(), signal.SIGKILL) if name == point else None)
export(dsn, Path(lake)) if job == "export" else compact(dsn, Path(lake), time.time_ns() // 1_000)
"""


class Died(BaseException):
    """What a kill would have been: nobody may handle it."""
