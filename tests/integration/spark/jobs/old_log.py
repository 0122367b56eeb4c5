"""A log of executions that ended weeks ago, and ways to die over it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from bench.grown_log import grow_log
from noetl.postgres.migrations import migrate
from noetl.postgres.pool import connect
from noetl.spark.jobs.lake import LakeStore
from noetl.spark.jobs.lake_directory import DirectoryLake
from noetl.spark.jobs.lake_objects import ObjectLake
from tests import s3

EXECUTIONS = 40
DAY = 86_400_000_000
DIRECTORY, OBJECTS = LAKES = ("directory", "objects")


def new_lake(kind: str, folder: Path) -> LakeStore:
    """An empty one, in that folder or in the S3 server of the tests."""
    if kind == DIRECTORY:
        return DirectoryLake(folder)
    place = f"{s3.server().place()}/lake"
    return ObjectLake(lambda: s3.server().connect_bucket(place), place)


def empty_lake_like(lake: LakeStore, folder: Path) -> LakeStore:
    return new_lake(DIRECTORY if isinstance(lake, DirectoryLake) else OBJECTS, folder)


def staging_entries(lake: LakeStore) -> list[str]:
    """Files and empty folders in staging."""
    if isinstance(lake, DirectoryLake):
        return os.listdir(Path(lake.name) / "_staging")
    return lake.list_files("_staging/")


async def fill(dsn: str) -> None:
    connection = await connect(dsn)
    await migrate(connection, shards=4)
    await connection.close()
    now = time.time_ns() // 1_000
    grow_log(dsn, EXECUTIONS, now - 40 * DAY, now - 35 * DAY, length=4)


def kill_job(job: str, point: str, dsn: str, lake: LakeStore) -> None:
    """The job in a process of its own, which dies there as by kill -9."""
    environment = {
        **os.environ,
        **({} if isinstance(lake, DirectoryLake) else s3.server().settings(lake.name)),
    }
    command = [sys.executable, "-c", DYING, job, point, dsn, lake.name]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == -signal.SIGKILL, done.stderr


DYING = """
import os, signal, sys, time
from pathlib import Path
from noetl import faults
from noetl.runtime.lake import open_lake
from noetl.settings import StorageSettings, read_settings
from noetl.spark.jobs.compact import compact_log
from noetl.spark.jobs.export import export_log

job, point, dsn, place = sys.argv[1:]
lake = open_lake(Path(), read_settings(StorageSettings), place)
faults.install_fault_hook(lambda name: os.kill(os.getpid(), signal.SIGKILL) if name == point else None)
export_log(dsn, lake) if job == "export" else compact_log(dsn, lake, time.time_ns() // 1_000)
"""


class Died(BaseException):
    """What a kill would have been: nobody may handle it."""
