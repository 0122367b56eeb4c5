"""The Spark server of this machine: a process that starts the JVM, publishes its address, and stops
it when it has been idle.

The process outlives the one that started it; the JVM never outlives this process. Other processes
start it by `python -m noetl.spark.server.process HOME`.
"""

import argparse
import ctypes
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
from noetl.spark.server import jvm
from noetl.spark.server.idle_daemons import IdleDaemons
from noetl.spark.server.java import Java, find_java
from noetl.spark.server.jvm_output import JvmOutput
from noetl.spark.server.server_state import ServerRecord, SparkServerState, open_private_file

SPARK_START_TIMEOUT_S = 120.0  # seconds until the server must answer
START_POLL_S = 0.1  # seconds between two looks while the server starts
WATCH_INTERVAL_S = 1.0  # seconds between two looks at a running server
END_TIMEOUT_S = 30.0  # seconds that the JVM may take to end
ARCHIVE_TIMEOUT_S = 600.0  # seconds that making the archive may take
JVM_VARIABLES = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "VIRTUAL_ENV")
PR_SET_PDEATHSIG = 1


def main() -> None:
    parser = argparse.ArgumentParser(prog="noetl spark serve")
    parser.add_argument("home", type=Path)
    parser.add_argument("--idle", type=float, default=600.0)
    parser.add_argument("--java-options", default="")
    parser.add_argument("--master")
    given = parser.parse_args()
    try:
        how = SparkServerSettings(given.idle, given.java_options)
        sys.exit(run_spark_server(given.home, how, given.master))
    except Unavailable as error:
        sys.exit(f"{error}; {error.hint}")  # goes to the log that the starting process reads


@dataclass(frozen=True, slots=True)
class SparkServerSettings:
    """Settings of the server: seconds until it ends unused, and options for Java."""

    idle: float = 600.0
    java_options: str = ""


def run_spark_server(home: Path, how: SparkServerSettings, master: str | None = None) -> int:
    """Serve until a signal stops it, it has been idle for too long, or the JVM ends.

    Returns the exit code, which is 0 also when another process serves already.
    """
    place = SparkServerState.from_home(home)
    stopping = _StopSignal()
    java, size = find_java(), jvm.measure_machine()
    port, token = _find_free_port(), secrets.token_urlsafe(24)
    with place.hold_lock("server.lock", fcntl.LOCK_EX | fcntl.LOCK_NB) as is_locked:
        if not is_locked:
            return 0
        conf = jvm.make_server_conf(size, place.folder, place.log, port, master)
        # The tables of the last server ended with it.
        shutil.rmtree(conf["spark.sql.warehouse.dir"], ignore_errors=True)
        command = jvm.make_jvm_command(java, size, conf, find_archive_folder(), how.java_options)
        process = _start_jvm(command, token, conf["spark.driver.host"], place)
        output = JvmOutput(process, place.log)
        has_answered = _wait_until_ready(process, port, stopping)
        if has_answered:
            output.stop_keeping()
            served = ServerRecord(port, token, os.getpid(), java.version, master)
            place.publish_server(served)
            _watch_server(place, process, how.idle, stopping)
        place.withdraw_server()
    _end_jvm(process)
    output.wait_for_end()
    _archive_classes(java, size)  # without the lock: it takes long, and another process may serve
    return 0 if has_answered else 1


class _StopSignal:
    """Whether a signal has told the process to stop."""

    def __init__(self) -> None:
        self.is_received = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._receive_signal)

    def _receive_signal(self, *_: object) -> None:
        self.is_received = True


def _find_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def find_archive_folder() -> Path:
    """Where the class archives of this user are."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "noetl" / "spark"


def _start_jvm(
    command: list[str],
    token: str,
    host: str,
    place: SparkServerState,
) -> "subprocess.Popen[bytes]":
    """Start the JVM. The token is in its environment, because every user can read command lines."""
    inherited = {name: os.environ[name] for name in JVM_VARIABLES if name in os.environ}
    environment = inherited | {
        "SPARK_HOME": str(jvm.find_spark_home()),
        "SPARK_CONNECT_AUTHENTICATE_TOKEN": token,
        "SPARK_LOCAL_IP": host,
        "PYSPARK_PYTHON": sys.executable,
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
    }
    open_private_file(place.log).close()  # the JVM appends to it
    return subprocess.Popen(  # noqa: S603 - our own arguments
        command,
        env=environment,
        cwd=place.folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=_die_with_parent,
    )


def _die_with_parent() -> None:
    """Called in the child process: let the system kill it when this process ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _wait_until_ready(process: "subprocess.Popen[bytes]", port: int, stopping: _StopSignal) -> bool:
    """Wait until the server takes connections. False if it ends, is stopped or takes too long."""
    end = time.monotonic() + SPARK_START_TIMEOUT_S
    while time.monotonic() < end and process.poll() is None and not stopping.is_received:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), WATCH_INTERVAL_S):
            return True
        time.sleep(START_POLL_S)
    return False


def _watch_server(
    place: SparkServerState,
    process: "subprocess.Popen[bytes]",
    idle: float,
    stopping: _StopSignal,
) -> None:
    """Wait until the server has to end. An idle server withdraws its address under the lock, so
    that the next command finds none and starts another server."""
    idle_daemons = IdleDaemons(process.pid)
    while process.poll() is None and not stopping.is_received:
        with place.hold_if_unused(time.time(), idle) as is_unused:
            if is_unused:
                return place.withdraw_server()
        idle_daemons.end_idle(time.monotonic())
        with suppress(subprocess.TimeoutExpired):
            process.wait(min(WATCH_INTERVAL_S, idle))


def _end_jvm(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(END_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _archive_classes(java: Java, size: jvm.Machine) -> None:
    """Make the archive of the classes that the server has loaded, if there is none.

    One process at a time does this, with the lowest priority.
    """
    archives = find_archive_folder()
    if not jvm.class_list_path(java, archives).exists():
        return
    with SparkServerState(archives).hold_lock(
        "archive.lock", fcntl.LOCK_EX | fcntl.LOCK_NB
    ) as is_locked:
        if is_locked:
            exists = jvm.archive_path(java, archives).exists()
            if not exists and _run_with_low_priority(
                jvm.make_archive_command(java, size, archives)
            ):
                jvm.keep_archive(java, archives)
            jvm.delete_old_archives(archives, time.time())
    jvm.delete_class_list(java, archives)


def _run_with_low_priority(command: list[str]) -> bool:
    """Run a command with the lowest priority. Returns whether it succeeded."""
    os.nice(19)
    try:
        ended = subprocess.run(  # noqa: S603 - our own arguments
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=ARCHIVE_TIMEOUT_S,
            preexec_fn=_die_with_parent,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return ended.returncode == 0


if __name__ == "__main__":
    main()
