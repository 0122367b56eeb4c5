"""The Spark server of this machine: a process that starts the JVM, publishes its address, and stops
it when it has been idle.

The process outlives the one that started it; the JVM never outlives this process. Other processes
start it by `python -m noetl.spark.serve HOME`.
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
LOOK_EVERY = 0.1  # seconds between two looks while the server starts
LOOK_AGAIN = 1.0  # seconds between two looks at a running server
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
        how = Serving(given.idle, given.java_options)
        sys.exit(serve(given.home, how, given.master))
    except Unavailable as error:
        sys.exit(f"{error}; {error.hint}")  # goes to the log that the starting process reads


@dataclass(frozen=True, slots=True)
class Serving:
    """Settings of the server: seconds until it ends unused, and options for Java."""

    idle: float = 600.0
    java_options: str = ""


def serve(home: Path, how: Serving, master: str | None = None) -> int:
    """Serve until a signal stops it, it has been idle for too long, or the JVM ends.

    Returns the exit code, which is 0 also when another process serves already.
    """
    place = SparkPlace.below(home)
    stopping = _Stopping()
    java, size = find(), jvm.machine()
    port, token = _free_port(), secrets.token_urlsafe(24)
    with place.locked("server.lock", fcntl.LOCK_EX | fcntl.LOCK_NB) as is_locked:
        if not is_locked:
            return 0
        conf = jvm.settings(size, place.folder, port, master)
        # The tables of the last server ended with it.
        shutil.rmtree(conf["spark.sql.warehouse.dir"], ignore_errors=True)
        command = jvm.command(java, size, conf, _archives(), how.java_options)
        process = _start(command, token, conf["spark.driver.host"], place)
        has_answered = _ready(process, port, stopping)
        if has_answered:
            served = Served(port, token, os.getpid(), java.version, master)
            place.publish(served)
            _watch(place, process, how.idle, stopping)
        place.withdraw()
    _end(process)
    _archive(java, size)  # without the lock: it takes long, and another process may serve
    return 0 if has_answered else 1


class _Stopping:
    """Whether a signal has told the process to stop."""

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
    command: list[str],
    token: str,
    host: str,
    place: SparkPlace,
) -> "subprocess.Popen[bytes]":
    """Start the JVM. The token is in its environment, because every user can read command lines."""
    inherited = {name: os.environ[name] for name in INHERITED if name in os.environ}
    environment = inherited | {
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
    """Called in the child process: let the system kill it when this process ends."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _ready(process: "subprocess.Popen[bytes]", port: int, stopping: _Stopping) -> bool:
    """Wait until the server takes connections. False if it ends, is stopped or takes too long."""
    end = time.monotonic() + STARTING
    while time.monotonic() < end and process.poll() is None and not stopping.told:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), LOOK_AGAIN):
            return True
        time.sleep(LOOK_EVERY)
    return False


def _watch(
    place: SparkPlace,
    process: "subprocess.Popen[bytes]",
    idle: float,
    stopping: _Stopping,
) -> None:
    """Wait until the server has to end. An idle server withdraws its address under the lock, so
    that the next command finds none and starts another server."""
    idle_daemons = Idle(process.pid)
    while process.poll() is None and not stopping.told:
        with place.unused(time.time(), idle) as is_unused:
            if is_unused:
                return place.withdraw()
        idle_daemons.sweep(time.monotonic())
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
    """Make the archive of the classes that the server has loaded, if there is none.

    One process at a time does this, with the lowest priority.
    """
    archives = _archives()
    if not jvm.loaded(java, archives).exists():
        return
    with SparkPlace(archives).locked("archive.lock", fcntl.LOCK_EX | fcntl.LOCK_NB) as is_locked:
        if is_locked:
            exists = jvm.archive(java, archives).exists()
            if not exists and _ran(jvm.archiving(java, size, archives)):
                jvm.keep_archive(java, archives)
            jvm.tidy(archives, time.time())
    jvm.forget_loaded(java, archives)


def _ran(command: list[str]) -> bool:
    """Run a command with the lowest priority. Returns whether it succeeded."""
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
