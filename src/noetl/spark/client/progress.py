"""Progress of a Spark job as Spark Connect reports it: lines for people, sums for the result."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

SPARK_PROGRESS_INTERVAL_S = 1.0  # seconds between two lines of progress


def describe_progress(stages: Sequence[Any]) -> str:
    """A line about the current operation. A step may run several operations in turn."""
    tasks = sum(int(stage.num_tasks) for stage in stages)
    completed_tasks = sum(int(stage.num_completed_tasks) for stage in stages)
    completed_stages = sum(bool(stage.done) for stage in stages)
    bytes_read = sum(int(stage.num_bytes_read) for stage in stages)
    parts = [f"{completed_tasks}/{tasks} tasks"]
    if len(stages) > 1:
        parts.append(f"stage {min(completed_stages + 1, len(stages))}/{len(stages)}")
    if bytes_read:
        parts.append(f"{_format_byte_count(bytes_read)} read")
    return ", ".join(parts)


def _format_byte_count(count: float) -> str:
    for unit in ("B", "KB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


class ProgressMetrics:
    """The progress handler of a session. PySpark calls it while an operation runs; it never raises."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._report_line = say
        self._operations: dict[str, list[Any]] = {}
        self._reported_at = time.monotonic() - SPARK_PROGRESS_INTERVAL_S

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
            if stages and not done and now - self._reported_at >= SPARK_PROGRESS_INTERVAL_S:
                self._reported_at = now
                self._report_line(describe_progress(stages))

    def _list_stages(self) -> Iterator[Any]:
        for stages in self._operations.values():
            yield from stages

    def _sum_field(self, field: str) -> int:
        return sum(int(getattr(stage, field, 0)) for stage in self._list_stages())

    def make_sums(self) -> dict[str, Any]:
        """Sums over all operations, for the facts of the result."""
        return {
            "stages": sum(1 for _ in self._list_stages()),
            "tasks": self._sum_field("num_tasks"),
            "bytes_read": self._sum_field("num_bytes_read"),
            "operation": next(reversed(self._operations), None),
        }
