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

SERVING = Serving(java_options="-Xmx1g -XX:TieredStopAtLevel=1")  # short work: compiling well would take longer


@contextmanager
def served(home: Path) -> Iterator[str]:
    """Its address."""
    place = SparkPlace.below(home)
    used = place.use()
    try:
        yield ensure(home, profile("local"), SERVING)
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
