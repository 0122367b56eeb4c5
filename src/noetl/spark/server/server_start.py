"""Finds the server of a profile, and starts the server of this machine when none answers."""

import fcntl
import os
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

from noetl.spark.profiles import SparkProfile, SparkUnavailable
from noetl.spark.server.process import SPARK_START_TIMEOUT_S, SparkServerSettings
from noetl.spark.server.server_state import ServerRecord, SparkServerState, open_private_file

ANSWER_POLL_S = 0.05  # seconds between two looks
# Seconds that a base session is used; Spark closes one that is idle twice as long.
BASE_PERIOD_S = 1800
MAX_ERROR_LINES = 5  # lines of a log in an error
_ERROR_LINE = re.compile(r"\b(ERROR|FAILED)\b|Exception\b")


def ensure_spark_server(home: Path, profile: SparkProfile, how: SparkServerSettings) -> str:
    """The address of a server that answers. Starts our server if needed, which takes a while.

    The caller marks the server as used for as long as it needs it.
    """
    if profile.url is not None:
        profile.check_reachable()
        return profile.url
    place = SparkServerState.from_home(home)
    # The idle time starts again. A server that was about to end has withdrawn its address by now.
    place.end_use(place.begin_use())
    served = find_answering_server(place)
    if served is None:
        with place.hold_lock("start.lock"):
            served = find_answering_server(place) or _start_server(home, place, profile, how)
    if served.cluster != profile.master:
        raise SparkUnavailable(
            f"the Spark server of this machine runs on {served.cluster or 'this machine'}, not on "
            f"{profile.master or 'this machine'}",
            hint="noetl spark stop, then try again; or use one profile per NOETL_HOME",
        )
    return served.url


def find_answering_server(place: SparkServerState) -> ServerRecord | None:
    """The server of this machine, or None if none answers."""
    served = place.read_server()
    if served is None or not served.takes_connections():
        return None
    return served


def _start_server(
    home: Path, place: SparkServerState, profile: SparkProfile, how: SparkServerSettings
) -> ServerRecord:
    """Start the server of this machine. The caller holds `start.lock`."""
    profile.check_reachable()
    end = time.monotonic() + SPARK_START_TIMEOUT_S
    # A process may still hold the lock: it starts up, or it ends soon because its JVM was lost.
    while _is_server_locked(place) and time.monotonic() < end:
        served = find_answering_server(place)
        if served is not None:
            return served
        time.sleep(ANSWER_POLL_S)
    process = _start_server_process(home, place, profile, how)
    while time.monotonic() < end:
        served = find_answering_server(place)
        if served is not None and served.pid == process.pid:
            return served
        if process.poll() is not None:
            break
        time.sleep(ANSWER_POLL_S)
    raise SparkUnavailable(
        f"Spark did not start: {_read_start_error(place)}",
        hint="noetl spark doctor says what it needs",
    )


def _start_server_process(
    home: Path,
    place: SparkServerState,
    profile: SparkProfile,
    how: SparkServerSettings,
) -> "subprocess.Popen[bytes]":
    command = [
        sys.executable,
        "-m",
        "noetl.spark.server.process",
        str(home),
        "--idle",
        str(how.idle),
        f"--java-options={how.java_options}",
    ]
    if profile.master is not None:
        command += ["--master", profile.master]
    with open_private_file(place.folder / "serve.log") as log:
        return subprocess.Popen(  # noqa: S603 - our own arguments
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            start_new_session=True,
        )


def _is_server_locked(place: SparkServerState) -> bool:
    """Whether a process serves. It may be about to end."""
    with place.hold_lock("server.lock", fcntl.LOCK_EX | fcntl.LOCK_NB) as is_free:
        return not is_free


def _read_start_error(place: SparkServerState) -> str:
    """The lines of the logs that explain a failed start."""
    for file in (place.folder / "serve.log", place.log):
        if not file.exists():
            continue
        lines = file.read_text(errors="replace").strip().splitlines()
        if lines:
            return " / ".join(_find_error_lines(lines))
    return f"nothing was said in {place.log}"


def _find_error_lines(lines: list[str]) -> list[str]:
    """The first lines that name an error, without stack frames; the last lines if none does."""
    found = [
        line.strip()
        for line in lines
        if _ERROR_LINE.search(line) and not line.lstrip().startswith("at ")
    ]
    return list(dict.fromkeys(found))[:MAX_ERROR_LINES] or lines[-MAX_ERROR_LINES:]


def current_base_period() -> int:
    """The number of the current period of half an hour. Each period has its own base session,
    which its first command makes."""
    return int(time.time() // BASE_PERIOD_S)


def stop_spark_server(place: SparkServerState, patience: float = 60.0) -> bool:
    """Stop the server, and wait until it serves no more. False if there was none.

    The process of the first server goes on for a while, to make the class archive.
    """
    served = place.read_server()
    if served is None:
        return False
    try:
        os.kill(served.pid, signal.SIGTERM)
    except ProcessLookupError:
        place.withdraw_server()
        return False
    end = time.monotonic() + patience
    while time.monotonic() < end:
        is_serving = place.read_server() == served or served.takes_connections()
        if not is_serving:
            break
        time.sleep(ANSWER_POLL_S)
    return True


def wait_for_process_end(pid: int, timeout: float) -> bool:
    """Wait until the process has ended. False if it still runs after `timeout` seconds.

    The process may stay in the process table, if its parent does not ask for its exit code.
    Outside Linux, there is no descriptor to wait for, so this does not wait.
    """
    if sys.platform != "linux":
        return True
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        ended, _, _ = select.select([descriptor], [], [], timeout)
        return bool(ended)
    finally:
        os.close(descriptor)
