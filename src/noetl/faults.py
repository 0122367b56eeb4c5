"""Named crash points. They do nothing in production.

A test or the simulator installs a hook that kills, raises or waits. The names are a contract with
the crash tests: this file lists all of them, and a test asserts that each one can be reached.
"""

from collections.abc import Callable

FAULT_POINTS = (
    "append.before",  # decided, nothing written
    "append.after",  # committed, no hint and no answer sent
    "claim.after",  # leased, the worker has no answer yet
    "report.after",  # recorded, the worker has no acknowledgement
    "takeover.after",  # the epoch is raised, nothing read yet
    "project.before",
    "project.after",
    "tool.before",  # claimed, the tool not started
    "tool.after",  # the tool has returned, nothing persisted
    "persist.after",  # persisted, not reported
    "spool.middle",  # a spool entry is half written
    "journal.after",  # a task is journaled, the next not started
)

# Crash points of jobs, which run in their own processes.
JOB_FAULT_POINTS = (
    "export.written",  # files are in staging, no manifest names them
    "export.committed",  # the manifest is written, its files are still in staging
    "compact.written",  # the file is in its place, the events are still in the log
    "compact.removed",  # the events are checked and removed, not committed
    "compact.committed",
    "compact.dropped",  # an empty partition is dropped
)

_hook: Callable[[str], None] | None = None


def hit_fault_point(name: str) -> None:
    if _hook is not None:
        _hook(name)


def install_fault_hook(hook: Callable[[str], None] | None) -> None:
    global _hook
    _hook = hook
