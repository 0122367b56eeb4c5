"""One Spark server for all processes of a test run: the first that needs it starts it, the last one stops it. Every command has
a session of its own.
"""

import fcntl
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from noetl.spark.profiles import parse_profile
from noetl.spark.server import jvm
from noetl.spark.server.java import find_java
from noetl.spark.server.process import SparkServerSettings, find_archive_folder
from noetl.spark.server.server_start import ensure_spark_server, stop_spark_server
from noetl.spark.server.server_state import SparkServerState
from tests.processes import SHORT_JAVA_OPTIONS, free_port
from tests.waiting import HANG_LIMIT_S, until

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


def make_class_archive(folder: Path) -> None:
    """Make the class archive of this Java and Spark if there is none: some twenty servers of a run start with it, in half the
    time. Servers make it when they end, with the lowest priority, which is too late on a busy machine. `python -m tests.spark`
    does the same."""
    java, size, archives = find_java(), jvm.measure_machine(), find_archive_folder()
    with SparkServerState(archives).hold_lock("test-archive.lock", fcntl.LOCK_EX):
        if jvm.archive_path(java, archives).exists():
            return
        conf = jvm.make_server_conf(size, folder, folder / "log", free_port(), None)
        command = jvm.make_jvm_command(java, size, conf, archives, SHORT_JAVA_OPTIONS)
        _record_classes(command, folder)
        try:
            subprocess.run(
                jvm.make_archive_command(java, size, archives),
                check=True,
                capture_output=True,
                timeout=HANG_LIMIT_S,
            )
            jvm.keep_archive(java, archives)
        finally:
            jvm.delete_class_list(java, archives)


def _record_classes(command: list[str], folder: Path) -> None:
    """Run a server until it has started. The JVM lists the classes that it loads."""
    with subprocess.Popen(
        command,
        cwd=folder,
        env={"PATH": os.defpath, "SPARK_HOME": str(jvm.find_spark_home())},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as server:
        log = folder / "log"
        until(lambda: log.exists() and "Spark Connect server started at" in log.read_text())
        server.terminate()


@pytest.fixture(scope="session")
def spark_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base
    make_class_archive(tmp_path_factory.mktemp("classes"))
    with run_spark_server(shared / "spark-home") as url:
        yield url


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        make_class_archive(Path(scratch))
