"""Finds the server of a profile, and starts the server of this machine when none answers."""

import fcntl
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from noetl.spark.place import Served, SparkPlace
from noetl.spark.profiles import Profile, SparkUnavailable
from noetl.spark.serve import STARTING, Serving

LOOK_EVERY = 0.05  # seconds between two looks
BASE = 1800  # seconds that a base session is used; Spark closes one that is idle twice as long
LINES = 5  # lines of a log in an error
_TELLING = re.compile(r"\b(ERROR|FAILED)\b|Exception\b")


def ensure(home: Path, profile: Profile, how: Serving) -> str:
    """The address of a server that answers. Starts our server if needed, which takes a while.

    The caller marks the server as used for as long as it needs it.
    """
    if profile.url is not None:
        profile.reach()
        return profile.url
    place = SparkPlace.below(home)
    # The idle time starts anew. A server that was about to end has withdrawn its address by now.
    place.leave(place.use())
    served = answering(place)
    if served is None:
        with place.locked("start.lock"):
            served = answering(place) or _started(home, place, profile, how)
    if served.cluster != profile.master:
        raise SparkUnavailable(
            f"the Spark server of this machine runs on {served.cluster or 'this machine'}, not on "
            f"{profile.master or 'this machine'}",
            hint="noetl spark stop, then try again; or use one profile per NOETL_HOME",
        )
    return served.url


def answering(place: SparkPlace) -> Served | None:
    """The server of this machine, or None if none answers."""
    served = place.served()
    if served is None or not served.answers():
        return None
    return served


def _started(home: Path, place: SparkPlace, profile: Profile, how: Serving) -> Served:
    """Start the server of this machine. The caller holds `start.lock`."""
    profile.reach()
    end = time.monotonic() + STARTING
    # A process may still hold the lock: it starts up, or it ends soon because its JVM was lost.
    while _is_served(place) and time.monotonic() < end:
        served = answering(place)
        if served is not None:
            return served
        time.sleep(LOOK_EVERY)
    process = _start_process(home, place, profile, how)
    while time.monotonic() < end:
        served = answering(place)
        if served is not None and served.pid == process.pid:
            return served
        if process.poll() is not None:
            break
        time.sleep(LOOK_EVERY)
    raise SparkUnavailable(
        f"Spark did not start: {_said(place)}", hint="noetl spark doctor says what it needs"
    )


def _start_process(
    home: Path,
    place: SparkPlace,
    profile: Profile,
    how: Serving,
) -> "subprocess.Popen[bytes]":
    command = [
        sys.executable,
        "-m",
        "noetl.spark.serve",
        str(home),
        "--idle",
        str(how.idle),
        f"--java-options={how.java_options}",
    ]
    if profile.master is not None:
        command += ["--master", profile.master]
    with open(place.folder / "serve.log", "wb") as log:
        return subprocess.Popen(  # noqa: S603 - our own arguments
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            start_new_session=True,
        )


def _is_served(place: SparkPlace) -> bool:
    """Whether a process serves. It may be about to end."""
    with place.locked("server.lock", fcntl.LOCK_EX | fcntl.LOCK_NB) as is_free:
        return not is_free


def _said(place: SparkPlace) -> str:
    """The lines of the logs that explain a failed start."""
    for file in (place.folder / "serve.log", place.log):
        if not file.exists():
            continue
        lines = file.read_text(errors="replace").strip().splitlines()
        if lines:
            return " / ".join(_telling(lines))
    return f"nothing was said in {place.log}"


def _telling(lines: list[str]) -> list[str]:
    """The first lines that name an error, without stack frames; the last lines if none does."""
    found = [
        line.strip()
        for line in lines
        if _TELLING.search(line) and not line.lstrip().startswith("at ")
    ]
    return list(dict.fromkeys(found))[:LINES] or lines[-LINES:]


def period() -> int:
    """The number of the current period of half an hour. Each period has its own base session,
    which its first command makes."""
    return int(time.time() // BASE)


def stop(place: SparkPlace, patience: float = 60.0) -> bool:
    """Stop the server, and wait until it serves no more. False if there was none.

    The process of the first server goes on for a while, to make the class archive.
    """
    served = place.served()
    if served is None:
        return False
    try:
        os.kill(served.pid, signal.SIGTERM)
    except ProcessLookupError:
        place.withdraw()
        return False
    end = time.monotonic() + patience
    while time.monotonic() < end:
        is_serving = place.served() == served or served.answers()
        if not is_serving:
            break
        time.sleep(LOOK_EVERY)
    return True
