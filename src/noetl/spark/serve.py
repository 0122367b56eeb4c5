"""The Spark server of this machine: one process that starts the JVM, says where it is, and stops it when nobody needs it.

It outlives whoever started it, and the JVM does not outlive it. `python -m noetl.spark.serve HOME` is how others start it.
"""

import argparse
import fcntl
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from noetl.model.errors import Unavailable
from noetl.spark import jvm
from noetl.spark.idle import Idle
from noetl.spark.java import Java, find
from noetl.spark.place import Served, SparkPlace

STARTING = 120.0  # seconds until the server must answer
LOOK_EVERY = 0.1
LOOK_AGAIN = 1.0
ENDING = 30.0  # seconds that the JVM may take to end
ARCHIVING = 600.0  # seconds that making the archive may take
INHERITED = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "VIRTUAL_ENV")
PR_SET_PDEATHSIG = 1


def main() -> None:
    parser = argparse.ArgumentParser(prog="noetl spark serve")
    parser.add_argument("home", type=Path)
    parser.add_argument("--idle", type=float, default=600.0)
    parser.add_argument("--java-options", default="")
    parser.add_argument("--master")
    given = parser.parse_args()
    try:
        sys.exit(serve(given.home, Serving(given.idle, given.java_options), given.master))
    except Unavailable as error:
        sys.exit(f"{error}; {error.hint}")  # for whoever started this: it is in the log


@dataclass(frozen=True, slots=True)
class Serving:
    """How a server of this machine is to be: seconds until it ends unused, and what its Java is told."""

    idle: float = 600.0
    java_options: str = ""


def serve(home: Path, how: Serving, master: str | None = None) -> int:
    """Until it is told to stop, is idle for so long, or the JVM ends. 0 also when another serves already."""
    place = SparkPlace.below(home)
    stopping = _Stopping()
    java, size, port, token = find(), jvm.machine(), _free_port(), secrets.token_urlsafe(24)
    with place.locked("server.lock", fcntl.LOCK_EX | fcntl.LOCK_NB) as ours:
        if not ours:
            return 0
        conf = jvm.settings(size, place.folder, port, master)
        shutil.rmtree(
            conf["spark.sql.warehouse.dir"], ignore_errors=True
        )  # of tables that went with the last server
        command = jvm.command(java, size, conf, _archives(), how.java_options)
        process = _start(command, token, conf["spark.driver.host"], place)
        answered = _ready(process, port, stopping)
        if answered:
            place.publish(Served(port, token, os.getpid(), java.version, master))
            _watch(place, process, how.idle, stopping)
        place.withdraw()
    _end(process)
    _archive(java, size)  # another may serve by now: this one may take its time
    return 0 if answered else 1


class _Stopping:
    """True once the process was told to."""

    def __init__(self) -> None:
        self.told = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._tell)

    def _tell(self, *_: object) -> None:
        self.told = True


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _archives() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "noetl" / "spark"


def _start(
    command: list[str], token: str, host: str, place: SparkPlace
) -> "subprocess.Popen[bytes]":
    """The token goes by the environment: command lines are for everyone to see."""
    environment = {name: os.environ[name] for name in INHERITED if name in os.environ} | {
        "SPARK_HOME": str(jvm.spark_home()),
        "SPARK_CONNECT_AUTHENTICATE_TOKEN": token,
        "SPARK_LOCAL_IP": host,
        "PYSPARK_PYTHON": sys.executable,
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
    }
    with open(place.log, "wb") as log:
        return subprocess.Popen(  # noqa: S603 - our own arguments
            command,
            env=environment,
            cwd=place.folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=_tied,
        )


def _tied() -> None:
    """In the JVM's process before it is one: it ends with us."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _ready(process: "subprocess.Popen[bytes]", port: int, stopping: _Stopping) -> bool:
    end = time.monotonic() + STARTING
    while time.monotonic() < end and process.poll() is None and not stopping.told:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), LOOK_AGAIN):
            return True
        time.sleep(LOOK_EVERY)
    return False


def _watch(
    place: SparkPlace, process: "subprocess.Popen[bytes]", idle: float, stopping: _Stopping
) -> None:
    """Returns when it is time to end; whoever comes meanwhile finds no address any more, and starts another."""
    left_behind = Idle(process.pid)
    while process.poll() is None and not stopping.told:
        with place.unused(time.time(), idle) as over:
            if over:
                return place.withdraw()
        left_behind.sweep(time.monotonic())
        with suppress(subprocess.TimeoutExpired):
            process.wait(min(LOOK_AGAIN, idle))


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(ENDING)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _archive(java: Java, size: jvm.Machine) -> None:
    """Of what the server has loaded, where there is none yet; by one process at a time, and only while nobody else has work."""
    archives = _archives()
    if not jvm.loaded(java, archives).exists():
        return
    with SparkPlace(archives).locked("archive.lock", fcntl.LOCK_EX | fcntl.LOCK_NB) as ours:
        if (
            ours
            and not jvm.archive(java, archives).exists()
            and _ran(jvm.archiving(java, size, archives))
        ):
            jvm.keep_archive(java, archives)
        if ours:
            jvm.tidy(archives, time.time())
    jvm.forget_loaded(java, archives)


def _ran(command: list[str]) -> bool:
    os.nice(19)
    try:
        ended = subprocess.run(  # noqa: S603 - our own arguments
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=ARCHIVING,
            preexec_fn=_tied,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return ended.returncode == 0


if __name__ == "__main__":
    main()
