"""Named crash points. In production `fault` does nothing; a test or the simulator installs a hook that kills, raises or waits.

The names are a contract with the crash tests: `POINTS` lists all of them, and a test asserts that each one can be reached.
"""

from collections.abc import Callable

POINTS = (
    "append.before",  # decided, nothing written
    "append.after",  # committed, nobody told yet
    "claim.after",  # leased, the worker does not know
    "report.after",  # recorded, the worker has no acknowledgement
    "takeover.after",  # the epoch is ours, nothing read yet
    "project.before",
    "project.after",
    "tool.before",  # claimed, the tool not started
    "tool.after",  # the tool has had its effect, nothing persisted
    "persist.after",  # persisted, not reported
    "spool.middle",  # a spool entry is half written
    "journal.after",  # a task is journaled, the next not started
)

# Of jobs, which are processes of their own and no part of a server or a worker.
JOB_POINTS = (
    "export.written",  # files are in staging, no manifest names them
    "export.committed",  # the manifest is there, its files are not in their places
    "compact.written",  # the file is in its place, the events are in the log
    "compact.removed",  # checked and removed, not committed
    "compact.committed",
    "compact.dropped",  # an empty partition is gone
)

_hook: Callable[[str], None] | None = None


def fault(name: str) -> None:
    if _hook is not None:
        _hook(name)


def install(hook: Callable[[str], None] | None) -> None:
    global _hook
    _hook = hook
