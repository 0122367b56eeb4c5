"""Summarise what a live execution waits for and how far its loop is, from its folded state."""

from noetl.engine.state import Execution, LoopState, OpenCommand
from noetl.model.live_summary import AwaitedThing, LiveSummary, LoopProgress, WaitReason

# The reasons of parked commands, by importance: a person has to know of the first ones.
_PARKED_REASONS: dict[str, WaitReason] = {
    "approval": "approval",
    "signal": "signal",
    "child": "child",
    "time": "timer",
}
_RANKS = {reason: rank for rank, reason in enumerate(_PARKED_REASONS.values())}


def summarise_live(state: Execution) -> LiveSummary | None:
    """None if the execution has ended, or neither waits nor loops."""
    if state.terminal and state.quarantined is None:
        return None
    summary = LiveSummary(_find_awaited_thing(state), _find_progress(state))
    if summary == LiveSummary():
        return None
    return summary


def _find_awaited_thing(state: Execution) -> AwaitedThing | None:
    if state.quarantined is not None:
        return AwaitedThing("quarantined")
    if state.status == "pending":
        return AwaitedThing("place", since=state.started_at)
    if state.paused and state.status == "running":
        return AwaitedThing("paused")
    parked = [command for command in state.commands.values() if command.parked is not None]
    if not parked:
        return None
    first = min(parked, key=_rank_parked_command)
    awaited = _describe_parked_command(state, first)
    is_busy = len(parked) < len(state.commands)
    if is_busy and awaited.on not in ("approval", "signal"):
        return None
    return awaited


def _rank_parked_command(command: OpenCommand) -> tuple[int, int]:
    reason = _get_reason(command)
    return _RANKS[reason], command.order


def _get_reason(command: OpenCommand) -> WaitReason:
    assert command.parked is not None, "only parked commands come here"
    return _PARKED_REASONS[command.parked.reason]


def _describe_parked_command(state: Execution, command: OpenCommand) -> AwaitedThing:
    parked = command.parked
    assert parked is not None, "only parked commands come here"
    activation = state.activations.get(command.activation)
    return AwaitedThing(
        on=_get_reason(command),
        step=command.step,
        name=parked.child if parked.reason == "child" else parked.signal,
        since=None if activation is None else activation.entered_at,
        question=parked.question,
        by=state.by if parked.reason == "approval" else None,
    )


def _find_progress(state: Execution) -> LoopProgress | None:
    """The progress of the loop that began last."""
    looping = [entry for entry in state.activations.values() if entry.loop is not None]
    if not looping:
        return None
    activation = max(looping, key=lambda entry: entry.order)
    loop = activation.loop
    assert loop is not None, "only loops were chosen"
    return LoopProgress(activation.step, _count_done(loop), loop.failed, _find_total(loop))


def _count_done(loop: LoopState) -> int:
    return loop.ok + loop.failed + loop.skipped + loop.ahead


def _find_total(loop: LoopState) -> int | None:
    has_known_size = loop.mode != "cursor" or loop.drained
    return loop.size if has_known_size else None
