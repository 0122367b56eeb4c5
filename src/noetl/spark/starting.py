"""From a profile to a server that answers; ours is started when there is none."""

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

LOOK_EVERY = 0.05
BASE = 1800  # seconds that sessions are copied from the same one: Spark closes what nobody used for twice as long
LINES = 5
_TELLING = re.compile(r"\b(ERROR|FAILED)\b|Exception\b")


def ensure(home: Path, profile: Profile, how: Serving) -> str:
    """The address of a server that answers; it may take the time of a start. Whoever asks has it in `use` for as long as
    it is needed."""
    if profile.url is not None:
        profile.reach()
        return profile.url
    place = SparkPlace.below(home)
    place.leave(place.use())  # a while begins anew; one that is about to end has ended after this
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
    served = place.served()
    return served if served is not None and served.answers() else None


def _started(home: Path, place: SparkPlace, profile: Profile, how: Serving) -> Served:
    profile.reach()
    command = [sys.executable, "-m", "noetl.spark.serve", str(home), "--idle", str(how.idle)]
    command += [f"--java-options={how.java_options}"]
    command += ["--master", profile.master] if profile.master is not None else []
    end = time.monotonic() + STARTING
    while _is_served(place) and time.monotonic() < end:  # one that was lost knows it in a moment
        if (served := answering(place)) is not None:
            return served
        time.sleep(LOOK_EVERY)
    with open(place.folder / "serve.log", "wb") as log:
        process = subprocess.Popen(  # noqa: S603 - our own arguments
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            start_new_session=True,
        )
    while time.monotonic() < end:
        if (served := answering(place)) is not None and served.pid == process.pid:
            return served
        if process.poll() is not None:
            break
        time.sleep(LOOK_EVERY)
    raise SparkUnavailable(
        f"Spark did not start: {_said(place)}", hint="noetl spark doctor says what it needs"
    )


def _is_served(place: SparkPlace) -> bool:
    """By a process that may be about to end."""
    with place.locked("server.lock", fcntl.LOCK_EX | fcntl.LOCK_NB) as free:
        return not free


def _said(place: SparkPlace) -> str:
    for file in (place.folder / "serve.log", place.log):
        lines = file.read_text(errors="replace").strip().splitlines() if file.exists() else []
        if lines:
            return " / ".join(_telling(lines))
    return f"nothing was said in {place.log}"


def _telling(lines: list[str]) -> list[str]:
    """The first that speak of an error, without the places in a program; the last ones when none does."""
    found = [
        line.strip()
        for line in lines
        if _TELLING.search(line) and not line.lstrip().startswith("at ")
    ]
    return list(dict.fromkeys(found))[:LINES] or lines[-LINES:]


def period() -> int:
    """The session that others are copies of is another in each; whoever comes first makes it."""
    return int(time.time() // BASE)


def stop(place: SparkPlace, patience: float = 60.0) -> bool:
    """False when there was none. Returns when it serves no more; of the first one an archive is made then."""
    served = place.served()
    if served is None:
        return False
    try:
        os.kill(served.pid, signal.SIGTERM)
    except ProcessLookupError:
        place.withdraw()
        return False
    end = time.monotonic() + patience
    while time.monotonic() < end and (place.served() == served or served.answers()):
        time.sleep(LOOK_EVERY)
    return True
