"""Python processes that Spark keeps for its tasks. Every session with code of its own has one that forks the others, and Spark
ends it only with itself; here it goes when it has forked nothing for a while. Spark starts another when it needs one."""

import os
import signal
import sys
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

PATIENCE = 120.0  # seconds; those that it forked are ended by Spark after one minute
EVERY = 30.0  # seconds between looks
NAME = b"pyspark.daemon"


class Idle:
    """Those below one JVM."""

    def __init__(self, jvm: int) -> None:
        self._jvm = jvm
        self._since: dict[int, float] = {}
        self._looked = 0.0

    def sweep(self, now: float) -> list[int]:
        """Those that were ended now."""
        if sys.platform != "linux" or now - self._looked < EVERY:
            return []
        self._looked = now
        below = _below()
        idle = [pid for pid in below[self._jvm] if not below[pid] and NAME in _command(pid)]
        self._since = {pid: self._since.get(pid, now) for pid in idle}
        over = [pid for pid, since in self._since.items() if now - since >= PATIENCE]
        for pid in over:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        return over


def _below() -> dict[int, list[int]]:
    """Of every process, those that it has started."""
    found: dict[int, list[int]] = defaultdict(list)
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            found[parent].append(int(stat.parent.name))
    return found


def _command(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []
