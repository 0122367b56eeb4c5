"""What Spark Connect tells of a job while it runs: a few words for those who watch, and sums for the result."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

BETWEEN = 1.0  # seconds between two lines of progress


def progress(stages: Sequence[Any]) -> str:
    """Of what runs now: a step may ask Spark several things, one after the other."""
    tasks, over = (
        sum(int(stage.num_tasks) for stage in stages),
        sum(int(stage.num_completed_tasks) for stage in stages),
    )
    ended, read = (
        sum(bool(stage.done) for stage in stages),
        sum(int(stage.num_bytes_read) for stage in stages),
    )
    told = [f"{over}/{tasks} tasks"]
    if len(stages) > 1:
        told.append(f"stage {min(ended + 1, len(stages))}/{len(stages)}")
    return ", ".join([*told, f"{_bytes(read)} read"] if read else told)


def _bytes(count: float) -> str:
    for unit in ("B", "KB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


class ProgressMetrics:
    """Told by PySpark while something runs; it must never raise."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._operations: dict[str, list[Any]] = {}
        self._said = time.monotonic() - BETWEEN

    def __call__(
        self, stages: Any, inflight_tasks: int, operation_id: str | None, done: bool
    ) -> None:
        with suppress(Exception):  # a line that cannot be told is not worth a query
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
        return {
            "stages": sum(1 for _ in self._all()),
            "tasks": self._sum("num_tasks"),
            "bytes_read": self._sum("num_bytes_read"),
            "operation": next(reversed(self._operations), None),
        }
