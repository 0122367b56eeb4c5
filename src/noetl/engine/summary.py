"""What people read of an execution, from its folded state: the columns of its projection that the fold alone says."""

from hashlib import sha256
from typing import Any

from noetl.engine.state import Execution, encode

STATUSES = (
    "pending",
    "running",
    "paused",
    "cancelling",
    "quarantined",
    "completed",
    "failed",
    "cancelled",
)


def summary(state: Execution) -> dict[str, Any]:
    data = encode(state)
    failure = state.failure if state.status == "failed" else None
    return {
        "path": state.path,
        "status": status(state),
        "started_at": state.started_at,
        "updated_at": state.last_at,
        "ended_at": state.ended_at,
        "parent": None if state.parent is None else state.parent.execution_id,
        "retry_of": state.retry_of,
        "error": state.quarantined
        or (f"{failure.code}: {failure.message}" if failure is not None else None),
        "steps": len(state.steps),
        "recovered": state.recovered,
        "state": data,
        "state_hash": state_hash(data),
    }


def broken(state: Execution, error: str) -> dict[str, Any]:
    """Of an execution whose log does not fold, as far as it does; without a state, so that nobody goes on from it."""
    return {
        "path": state.path,
        "status": "quarantined",
        "started_at": state.started_at,
        "updated_at": state.last_at,
        "error": error,
        "steps": len(state.steps),
        "recovered": state.recovered,
    }


def status(state: Execution) -> str:
    """One of STATUSES."""
    if state.quarantined is not None:
        return "quarantined"
    return "paused" if state.paused and state.status == "running" else state.status


def state_hash(data: bytes) -> str:
    return sha256(data).hexdigest()
