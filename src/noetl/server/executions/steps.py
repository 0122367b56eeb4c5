"""The steps of an execution as people see them, with the same status words as executions have."""

from noetl.engine.state import Activation, Execution, LoopState, Record
from noetl.model.clock import format_iso_or_none
from noetl.server.executions.views import LoopView, StepView

STATUS_WORDS = {
    "ok": "completed",
    "error": "failed",
    "none": "waiting",
}  # other statuses stay as they are


def summarize_steps(state: Execution) -> dict[str, StepView]:
    """The steps by name, in the order they began."""
    steps = {name: _summarize_ended(record) for name, record in state.steps.items()}
    for activation in state.activations.values():
        earlier = steps.get(activation.step)
        runs = 0 if earlier is None else earlier.runs
        steps[activation.step] = _summarize_running(activation, runs)
    return steps


def _summarize_ended(record: Record) -> StepView:
    stats = record.stats
    loop = None
    if stats is not None:
        done = stats.ok + stats.failed + stats.skipped
        loop = LoopView(done, stats.failed, stats.skipped, stats.total)
    seconds = None
    if record.entered_at is not None and record.ended_at is not None:
        seconds = (record.ended_at - record.entered_at) / 1e6
    return StepView(
        status=STATUS_WORDS.get(record.status, record.status),
        runs=record.runs,
        started_at=format_iso_or_none(record.entered_at),
        ended_at=format_iso_or_none(record.ended_at),
        seconds=seconds,
        loop=loop,
    )


def _summarize_running(activation: Activation, runs: int) -> StepView:
    return StepView(
        status="running",
        runs=max(activation.run, runs),
        started_at=format_iso_or_none(activation.entered_at),
        ended_at=None,
        seconds=None,
        loop=None if activation.loop is None else _make_loop_view(activation.loop),
    )


def _make_loop_view(loop: LoopState) -> LoopView:
    done = loop.ok + loop.failed + loop.skipped + loop.ahead
    has_known_size = loop.mode != "cursor" or loop.drained
    total = loop.size if has_known_size else None
    return LoopView(done, loop.failed, loop.skipped, total)
