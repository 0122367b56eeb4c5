"""One Spark server for all processes of a test run: the first that needs it starts it, the last one stops it. Every command has
a session of its own.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from noetl.spark.place import SparkPlace
from noetl.spark.profiles import profile
from noetl.spark.serve import Serving
from noetl.spark.starting import ensure, stop

ELSEWHERE = "viewfs://lake"  # before a path of this machine: a file system that only Spark knows
JAVA_OPTIONS = "-Xmx1g -XX:TieredStopAtLevel=1"  # short work: compiling well would take longer


@contextmanager
def served(home: Path) -> Iterator[str]:
    """Its address. It reaches what is beside `home` by `ELSEWHERE` too."""
    place = SparkPlace.below(home)
    mounted = f"-Dspark.hadoop.fs.viewfs.mounttable.lake.link.{home.parent}=file://{home.parent}"
    used = place.use()
    try:
        yield ensure(home, profile("local"), Serving(java_options=f"{JAVA_OPTIONS} {mounted}"))
    finally:
        place.leave(used)
        with place.unused(time.time(), 0.0) as last:
            if last:
                stop(place)


@pytest.fixture(scope="session")
def spark_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base
    with served(shared / "spark-home") as url:
        yield url
