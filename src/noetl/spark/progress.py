"""Progress of a Spark job as Spark Connect reports it: lines for people, sums for the result."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

BETWEEN = 1.0  # seconds between two lines of progress


def progress(stages: Sequence[Any]) -> str:
    """A line about the current operation. A step may run several operations in turn."""
    tasks = sum(int(stage.num_tasks) for stage in stages)
    completed_tasks = sum(int(stage.num_completed_tasks) for stage in stages)
    completed_stages = sum(bool(stage.done) for stage in stages)
    bytes_read = sum(int(stage.num_bytes_read) for stage in stages)
    parts = [f"{completed_tasks}/{tasks} tasks"]
    if len(stages) > 1:
        parts.append(f"stage {min(completed_stages + 1, len(stages))}/{len(stages)}")
    if bytes_read:
        parts.append(f"{_bytes(bytes_read)} read")
    return ", ".join(parts)


def _bytes(count: float) -> str:
    for unit in ("B", "KB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


class ProgressMetrics:
    """The progress handler of a session. PySpark calls it while an operation runs; it never raises."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._operations: dict[str, list[Any]] = {}
        self._said = time.monotonic() - BETWEEN

    def __call__(
        self,
        stages: Any,
        inflight_tasks: int,
        operation_id: str | None,
        done: bool,
    ) -> None:
        with suppress(Exception):  # a missing line of progress must not fail the query
            if stages:
                self._operations[operation_id or ""] = list(stages)
            now = time.monotonic()
            if stages and not done and now - self._said >= BETWEEN:
                self._said = now
                self._say(progress(stages))

    def _all(self) -> Iterator[Any]:
        for stages in self._operations.values():
            yield from stages

    def _sum(self, field: str) -> int:
        return sum(int(getattr(stage, field, 0)) for stage in self._all())

    def told(self) -> dict[str, Any]:
        """Sums over all operations, for the facts of the result."""
        return {
            "stages": sum(1 for _ in self._all()),
            "tasks": self._sum("num_tasks"),
            "bytes_read": self._sum("num_bytes_read"),
            "operation": next(reversed(self._operations), None),
        }
