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

DAEMON_IDLE_S = 120.0  # seconds without a child; Spark ends idle children after one minute
SWEEP_INTERVAL_S = 30.0  # seconds between two looks
DAEMON_MODULE = b"pyspark.daemon"


class IdleDaemons:
    """The idle daemons of one JVM."""

    def __init__(self, jvm: int) -> None:
        self._jvm = jvm
        self._idle_since: dict[int, float] = {}
        self._looked_at = 0.0

    def end_idle(self, now: float) -> list[int]:
        """End daemons that have been idle for too long. Returns their process ids."""
        if sys.platform != "linux" or now - self._looked_at < SWEEP_INTERVAL_S:
            return []
        self._looked_at = now
        children = _list_children()
        idle = [
            pid
            for pid in children[self._jvm]
            if not children[pid] and DAEMON_MODULE in _read_command_line(pid)
        ]
        self._idle_since = {pid: self._idle_since.get(pid, now) for pid in idle}
        expired = [pid for pid, since in self._idle_since.items() if now - since >= DAEMON_IDLE_S]
        for pid in expired:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        return expired


def _list_children() -> dict[int, list[int]]:
    """The child processes of every process."""
    children: dict[int, list[int]] = defaultdict(list)
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            parent = int(fields[1])
            children[parent].append(int(stat.parent.name))
    return children


def _read_command_line(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []
