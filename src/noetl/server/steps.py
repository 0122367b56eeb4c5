"""How people see the steps of an execution: in the words of executions, whatever the log calls them."""

from dataclasses import asdict, dataclass
from typing import Any

from noetl.engine.state import Activation, Execution, LoopState, Record
from noetl.model.clock import iso
from noetl.model.ids import Micros

WORDS = {"ok": "completed", "error": "failed", "none": "waiting"}  # the others are called the same


@dataclass(frozen=True, slots=True)
class LoopProgress:
    """`done` counts failed and skipped items too. `total` is None while a cursor has not come to its end."""

    done: int
    failed: int
    skipped: int
    total: int | None


@dataclass(frozen=True, slots=True)
class StepSeen:
    """`started_at` and `ended_at` are those of its last run."""

    status: str
    runs: int
    started_at: Micros | None = None
    ended_at: Micros | None = None
    loop: LoopProgress | None = None

    @property
    def seconds(self) -> float | None:
        """How long its last run took; None while it runs, and for a step that did not run here."""
        if self.started_at is None or self.ended_at is None:
            return None
        return (self.ended_at - self.started_at) / 1e6

    def shown(self) -> dict[str, Any]:
        return {
            "status": self.status,
            "runs": self.runs,
            "started_at": iso(self.started_at) if self.started_at else None,
            "ended_at": iso(self.ended_at) if self.ended_at else None,
            "seconds": self.seconds,
            "loop": None if self.loop is None else asdict(self.loop),
        }


def steps_of(state: Execution) -> dict[str, StepSeen]:
    """By name, in the order they began."""
    seen = {name: _over(record) for name, record in state.steps.items()}
    for activation in state.activations.values():
        known = seen.get(activation.step)
        seen[activation.step] = _live(activation, known.runs if known is not None else 0)
    return seen


def _over(record: Record) -> StepSeen:
    stats = record.stats
    loop = None
    if stats is not None:
        done = stats.ok + stats.failed + stats.skipped
        loop = LoopProgress(done, stats.failed, stats.skipped, stats.total)
    status = WORDS.get(record.status, record.status)
    return StepSeen(status, record.runs, record.entered_at, record.ended_at, loop)


def _live(activation: Activation, runs: int) -> StepSeen:
    loop = None if activation.loop is None else _progress(activation.loop)
    return StepSeen("running", max(activation.run, runs), activation.entered_at, None, loop)


def _progress(loop: LoopState) -> LoopProgress:
    done = loop.ok + loop.failed + loop.skipped + loop.ahead
    total = loop.size if loop.mode != "cursor" or loop.drained else None
    return LoopProgress(done, loop.failed, loop.skipped, total)
