"""Retrying a finished execution: a new one that takes over what finished and begins where the old one ended badly."""

from msgspec import json

from noetl.engine.state import Execution, Record
from noetl.model import events as e
from noetl.model.envelope import Envelope
from noetl.model.ids import Micros

CTX_BYTES = 8_000


def start_at(old: Execution) -> tuple[e.StartAt, ...]:
    """Each step that failed or was cut off, once; the arguments of its last arrival."""
    starts = {unfinished.step: e.StartAt(unfinished.step, unfinished.args) for unfinished in old.unfinished}
    return tuple(starts.values())


def inherited(old: Execution, at: Micros) -> list[e.Event]:
    """What the new execution takes over: variables in parts that fit an event, then results by reference."""
    again = {unfinished.step for unfinished in old.unfinished}
    events: list[e.Event] = []
    part: dict[str, object] = {}
    for name in sorted(old.ctx):
        if part and len(json.encode({**part, name: old.ctx[name]})) > CTX_BYTES:
            events.append(e.CtxInherited(at=at, set=part, part=len(events)))
            part = {}
        part[name] = old.ctx[name]
    if part:
        events.append(e.CtxInherited(at=at, set=part, part=len(events)))
    for step, record in sorted(old.steps.items(), key=lambda entry: entry[1].order):
        made = _step(step, record, step in again, at)
        if made is not None:
            events.append(made)
    return events


def _step(step: str, record: Record, again: bool, at: Micros) -> e.StepInherited | None:
    if again:
        loop = record.loop
        if loop is None:
            return None
        return e.StepInherited(at=at, step=step, result=record.result or Envelope(status="error"), runs=0, loop=loop)
    if record.result is None or record.status not in ("ok", "error", "inherited"):
        return None
    return e.StepInherited(at=at, step=step, result=record.result, runs=record.runs)
