"""The columns of an execution's projection that its folded state gives, for lists and queries."""

from hashlib import sha256
from typing import Any

from noetl.engine.live_summary import summarise_live
from noetl.engine.state import Execution, encode_execution
from noetl.model.live_summary import AwaitedThing, LiveSummary
from noetl.model.stored_text import replace_nul


def summarise_execution(state: Execution) -> dict[str, Any]:
    data = encode_execution(state)
    error = state.quarantined or None
    if error is None and state.status == "failed" and state.failure is not None:
        error = f"{state.failure.code}: {state.failure.message}"
    if error is not None:
        error = replace_nul(error)
    parent = state.parent.execution_id if state.parent is not None else None
    live = summarise_live(state)
    return {
        "path": state.path,
        "status": get_shown_status(state),
        "started_at": state.started_at,
        "updated_at": state.last_at,
        "ended_at": state.ended_at,
        "parent": parent,
        "retry_of": state.retry_of,
        "error": error,
        "steps": len(state.steps),
        "recovered": state.recovered,
        "live": live,
        "waiting": live is not None and live.waits_for_person,
        "state": data,
        "state_hash": hash_state(data),
    }


def summarise_broken(state: Execution, error: str) -> dict[str, Any]:
    """The columns of an execution with a log that does not fold. There is no state column, so that
    no server continues from it."""
    return {
        "path": state.path,
        "status": "quarantined",
        "started_at": state.started_at,
        "updated_at": state.last_at,
        "error": replace_nul(error),
        "steps": len(state.steps),
        "recovered": state.recovered,
        "live": LiveSummary(AwaitedThing("quarantined")),
        "waiting": True,
    }


def get_shown_status(state: Execution) -> str:
    """One of STATUSES."""
    if state.quarantined is not None:
        return "quarantined"
    if state.paused and state.status == "running":
        return "paused"
    return state.status


def hash_state(data: bytes) -> str:
    return sha256(data).hexdigest()
