"""State between executions, as one execution sees it: read once, then changed by its own writes.

`state.read` brings values and versions. Every event with a `set` of `state.name` is a write of
that name. `state.conflict` says that another execution or a person wrote the name; from then on a
step that writes it fails with STATE_CONFLICT. A write becomes a `SetState` effect with the version
that this execution knows. The append checks whether that version is still the current one.
"""

from collections.abc import Iterator
from typing import Any

from msgspec import json
from msgspec.structs import replace

from noetl.engine.state import Activation, Execution, KnownState, PinnedPlaybook
from noetl.model import events as e
from noetl.model.decisions import SetState
from noetl.model.errors import Failure
from noetl.model.ids import Micros
from noetl.model.playbook_state import (
    MAX_STATE_NAMES,
    NEVER_WRITTEN,
    StateValue,
    find_value_problem,
)
from noetl.playbook.assignments import compute_state_writes

MAX_STATE_PART_BYTES = 8_000  # of the values in one `state.read`
NOTHING_KNOWN = KnownState(unset=True)


def get_visible_state(state: Execution) -> dict[str, Any]:
    """The values that templates see as `state`."""
    return {name: known.value for name, known in state.playbook_state.items() if not known.unset}


def describe_playbook_state(state: Execution) -> dict[str, dict[str, Any]]:
    """What the execution read and wrote, by name, for the API."""
    return {
        name: {
            "value": known.value,
            "unset": known.unset,
            "read_version": known.read,
            "version": known.version,
            "writes": known.writes,
            "conflict_version": known.conflict,
            "conflict_by": known.conflict_by,
        }
        for name, known in state.playbook_state.items()
    }


# ---- reading ----------------------------------------------------------------------------


def make_state_reads(
    pinned: PinnedPlaybook,
    state: Execution,
    stored: dict[str, StateValue],
    at: Micros,
) -> list[e.StateRead]:
    """Read the stored values of the names that the playbook uses and the execution does not know
    yet. `state_names` is None if the playbook may use every name."""
    names = pinned.plan.state_names
    if names is None:
        names = frozenset(stored)
    values = {
        name: stored.get(name, NEVER_WRITTEN)
        for name in sorted(names)
        if name not in state.playbook_state
    }
    return [e.StateRead(at=at, values=part) for part in _split_state_values(values)]


def inherit_state(pinned: PinnedPlaybook, retried: Execution, at: Micros) -> list[e.StateRead]:
    """Read the values that inherited steps have used, with the versions of that time. So a write
    that depends on them cannot overwrite a later value."""
    names: set[str] = set()
    for step in _list_inherited_steps(retried):
        names.update(_list_used_names(pinned, retried, step))
    values: dict[str, StateValue] = {}
    for name in sorted(names):
        known = retried.playbook_state[name]
        values[name] = StateValue(known.version, known.value, known.unset)
    return [e.StateRead(at=at, values=part, inherited=True) for part in _split_state_values(values)]


def _list_inherited_steps(retried: Execution) -> list[str]:
    again = {unfinished.step for unfinished in retried.unfinished}
    return [
        step
        for step, record in retried.steps.items()
        if record.result is not None and step not in again
    ]


def _list_used_names(pinned: PinnedPlaybook, retried: Execution, step: str) -> list[str]:
    """The known state names that the step may have used: all of them if that is not known."""
    plan = pinned.plan.steps.get(step)
    if plan is None or plan.uses.state is None:
        return list(retried.playbook_state)
    return [name for name in retried.playbook_state if name in plan.uses.state]


def _split_state_values(values: dict[str, StateValue]) -> Iterator[dict[str, StateValue]]:
    """Split the values into parts that fit into an event."""
    part: dict[str, StateValue] = {}
    size = 0
    for name, value in values.items():
        added = len(json.encode({name: value}))
        if part and size + added > MAX_STATE_PART_BYTES:
            yield part
            part, size = {}, 0
        part[name] = value
        size += added
    if part:
        yield part


def fold_read(state: Execution, event: e.StateRead) -> Execution:
    entries = dict(state.playbook_state)
    for name, stored in event.values.items():
        entries[name] = KnownState(
            value=stored.value,
            version=stored.version,
            unset=stored.unset,
            read=stored.version,
        )
    return replace(state, playbook_state=entries)


# ---- conflicts --------------------------------------------------------------------------


def list_new_conflicts(
    state: Execution,
    found: dict[str, e.StateConflict],
    at: Micros,
) -> list[e.StateConflict]:
    """The conflicts of the last append that are new to this execution. A version that it knows is
    its own write, not a conflict."""
    new: list[e.StateConflict] = []
    for name, conflict in found.items():
        known = state.playbook_state.get(name, NOTHING_KNOWN)
        if known.conflict is not None:
            continue
        if conflict.is_full:
            is_new = known.version == 0
        else:
            is_new = conflict.version != known.version
        if is_new:
            new.append(replace(conflict, at=max(at, state.last_at), expected=known.version))
    return new


def fold_conflict(state: Execution, event: e.StateConflict) -> Execution:
    known = state.playbook_state.get(event.name, NOTHING_KNOWN)
    known = replace(known, conflict=event.version, conflict_by=event.by, is_full=event.is_full)
    return replace(state, playbook_state={**state.playbook_state, event.name: known})


# ---- writing ----------------------------------------------------------------------------


def writes_state(values: dict[str, Any]) -> bool:
    return any(target.startswith("state.") for target in values)


def find_write_refusal(state: Execution, values: dict[str, Any]) -> Failure | None:
    """Why these assignments to state cannot be made. None if they can, or if there are none."""
    if not values or not writes_state(values):
        return None
    for name, value in compute_state_writes(get_visible_state(state), values).items():
        failure = _check_state_write(state.playbook_state.get(name, NOTHING_KNOWN), name, value)
        if failure is not None:
            return failure
    return None


def _check_state_write(known: KnownState, name: str, value: Any) -> Failure | None:
    problem = find_value_problem(name, value)
    if problem is not None:
        return Failure(code="STATE_VALUE", kind="state", message=problem)
    if known.conflict is None:
        return None
    if known.is_full:
        message = (
            f"state.{name} would be one name more than a playbook may have ({MAX_STATE_NAMES})."
            " Nothing was written; put several values into one map: set: {state.seen.eu: …}"
        )
        return Failure(code="STATE_FULL", kind="state", message=message, detail={"name": name})
    by = f" by {known.conflict_by}" if known.conflict_by is not None else ""
    message = (
        f"state.{name} was written{by} since this execution read version {known.version} of it: "
        f"it has version {known.conflict} now. Nothing was written;"
        " `noetl exec rerun` starts from the new value"
    )
    detail = {
        "name": name,
        "expected": known.version,
        "found": known.conflict,
        "by": known.conflict_by,
    }
    return Failure(code="STATE_CONFLICT", kind="state", message=message, detail=detail)


def fold_writes(state: Execution, event: Any) -> Execution:
    """Fold the state values that an event assigns: all of them, or none and the step fails."""
    if not event.set or not writes_state(event.set):
        return state
    failure = find_write_refusal(state, event.set)
    if failure is not None:
        return _fail_activation(state, event, failure)
    entries = dict(state.playbook_state)
    for name, value in compute_state_writes(get_visible_state(state), event.set).items():
        known = entries.get(name, NOTHING_KNOWN)
        if known.writes and _is_same_json(known.value, value):
            continue  # the journal entries of a retry repeat the assignments
        entries[name] = replace(
            known,
            value=value,
            unset=False,
            version=known.version + 1,
            writes=known.writes + 1,
        )
    return replace(state, playbook_state=entries)


def _is_same_json(left: Any, right: Any) -> bool:
    return json.encode(left) == json.encode(right)


def _fail_activation(state: Execution, event: Any, failure: Failure) -> Execution:
    """Let the step fail with this failure, once its commands have stopped."""
    activation = state.activations.get(event.activation)
    if activation is None:
        return state
    failing: Activation
    if activation.loop is not None and activation.phase == "loop":
        failing = replace(activation, loop=replace(activation.loop, broken=failure, stopping=True))
    else:
        failing = replace(activation, unwritten=failure, stopped=True)
    return replace(state, activations={**state.activations, failing.id: failing})


def list_state_effects(before: Execution, after: Execution, event: e.Event) -> Iterator[SetState]:
    """The writes that the event made, found by comparing the states before and after it."""
    for name, known in after.playbook_state.items():
        earlier = before.playbook_state.get(name, NOTHING_KNOWN)
        if known.writes > earlier.writes:
            yield SetState(after.path, name, known.value, earlier.version, event.key)
