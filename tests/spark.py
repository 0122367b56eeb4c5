"""One Spark server for all processes of a test run: the first that needs it starts it, the last one stops it. Every command has
a session of its own.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from noetl.spark.profiles import parse_profile
from noetl.spark.server.process import SparkServerSettings
from noetl.spark.server.server_start import ensure_spark_server, stop_spark_server
from noetl.spark.server.server_state import SparkServerState
from tests.processes import SHORT_JAVA_OPTIONS

ELSEWHERE = "viewfs://lake"  # before a path of this machine: a file system that only Spark knows


@contextmanager
def run_spark_server(home: Path) -> Iterator[str]:
    """Its address. It reaches what is beside `home` by `ELSEWHERE` too."""
    place = SparkServerState.from_home(home)
    mounted = f"-Dspark.hadoop.fs.viewfs.mounttable.lake.link.{home.parent}=file://{home.parent}"
    used = place.begin_use()
    try:
        yield ensure_spark_server(
            home,
            parse_profile("local"),
            SparkServerSettings(java_options=f"{SHORT_JAVA_OPTIONS} {mounted}"),
        )
    finally:
        place.end_use(used)
        with place.hold_if_unused(time.time(), 0.0) as last:
            if last:
                stop_spark_server(place)


@pytest.fixture(scope="session")
def spark_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base
    with run_spark_server(shared / "spark-home") as url:
        yield url
