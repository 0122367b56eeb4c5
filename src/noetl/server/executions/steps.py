"""The steps of an execution as people see them, with the same status words as executions have."""

from dataclasses import asdict, dataclass
from typing import Any

from noetl.engine.state import Activation, Execution, LoopState, Record
from noetl.model.clock import format_iso_or_none
from noetl.model.ids import Micros

STATUS_WORDS = {
    "ok": "completed",
    "error": "failed",
    "none": "waiting",
}  # other statuses stay as they are


@dataclass(frozen=True, slots=True)
class LoopProgress:
    """`done` includes failed and skipped items. `total` is None until a cursor reaches its end."""

    done: int
    failed: int
    skipped: int
    total: int | None


@dataclass(frozen=True, slots=True)
class StepSummary:
    """A step; `started_at` and `ended_at` are the times of its last run."""

    status: str
    runs: int
    started_at: Micros | None = None
    ended_at: Micros | None = None
    loop: LoopProgress | None = None

    @property
    def seconds(self) -> float | None:
        """The duration of its last run; None while it runs, and if the step did not run here."""
        if self.started_at is None or self.ended_at is None:
            return None
        return (self.ended_at - self.started_at) / 1e6

    def to_dict(self) -> dict[str, Any]:
        """The step as JSON."""
        loop = None if self.loop is None else asdict(self.loop)
        return {
            "status": self.status,
            "runs": self.runs,
            "started_at": format_iso_or_none(self.started_at),
            "ended_at": format_iso_or_none(self.ended_at),
            "seconds": self.seconds,
            "loop": loop,
        }


def summarize_steps(state: Execution) -> dict[str, StepSummary]:
    """The steps by name, in the order they began."""
    steps = {name: _summarize_ended(record) for name, record in state.steps.items()}
    for activation in state.activations.values():
        earlier = steps.get(activation.step)
        runs = 0 if earlier is None else earlier.runs
        steps[activation.step] = _summarize_running(activation, runs)
    return steps


def _summarize_ended(record: Record) -> StepSummary:
    stats = record.stats
    loop = None
    if stats is not None:
        done = stats.ok + stats.failed + stats.skipped
        loop = LoopProgress(done, stats.failed, stats.skipped, stats.total)
    status = STATUS_WORDS.get(record.status, record.status)
    return StepSummary(status, record.runs, record.entered_at, record.ended_at, loop)


def _summarize_running(activation: Activation, runs: int) -> StepSummary:
    loop = None if activation.loop is None else _make_loop_progress(activation.loop)
    return StepSummary("running", max(activation.run, runs), activation.entered_at, None, loop)


def _make_loop_progress(loop: LoopState) -> LoopProgress:
    done = loop.ok + loop.failed + loop.skipped + loop.ahead
    has_known_size = loop.mode != "cursor" or loop.drained
    total = loop.size if has_known_size else None
    return LoopProgress(done, loop.failed, loop.skipped, total)
