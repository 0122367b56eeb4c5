"""Ends idle PySpark daemons of the Spark server.

Every session with code of its own has a Python daemon that forks the processes of its tasks. Spark
ends such a daemon only when Spark itself ends. This module ends a daemon that has had no child for
a while; Spark starts another one when it needs it.
"""

import os
import signal
import sys
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

PATIENCE = 120.0  # seconds without a child; Spark ends idle children after one minute
EVERY = 30.0  # seconds between two looks
NAME = b"pyspark.daemon"


class Idle:
    """The idle daemons of one JVM."""

    def __init__(self, jvm: int) -> None:
        self._jvm = jvm
        self._since: dict[int, float] = {}
        self._looked = 0.0

    def sweep(self, now: float) -> list[int]:
        """End daemons that have been idle for too long. Returns their process ids."""
        if sys.platform != "linux" or now - self._looked < EVERY:
            return []
        self._looked = now
        children = _below()
        idle = [pid for pid in children[self._jvm] if not children[pid] and NAME in _command(pid)]
        self._since = {pid: self._since.get(pid, now) for pid in idle}
        expired = [pid for pid, since in self._since.items() if now - since >= PATIENCE]
        for pid in expired:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        return expired


def _below() -> dict[int, list[int]]:
    """The child processes of every process."""
    children: dict[int, list[int]] = defaultdict(list)
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            parent = int(fields[1])
            children[parent].append(int(stat.parent.name))
    return children


def _command(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []
