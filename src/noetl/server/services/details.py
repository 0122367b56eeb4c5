"""One execution in detail: beside its row the workload, the children with their status, and the first causal failure."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from noetl.engine.state import Execution
from noetl.log.port import Projection
from noetl.model.errors import Failure
from noetl.model.ids import ExecutionId
from noetl.model.secrets import stripped

CHILDREN_LISTED = 20
MAX_WORKLOAD_BYTES = (
    64 * 1024
)  # of what is shown with the execution; a larger one is asked for by itself
MAX_DEPTH = 40  # children nest 32 deep

ReadState = Callable[[ExecutionId], Awaitable[Execution | None]]


@dataclass(frozen=True, slots=True)
class Cause:
    """The failure that began it all: of a step of this execution, or of a child somewhere below it. `item` is the index of the
    loop's item that failed first."""

    execution_id: ExecutionId
    path: str
    step: str | None
    failure: Failure
    item: int | None = None

    def shown(self) -> dict[str, Any]:
        return {
            "execution_id": self.execution_id,
            "path": self.path,
            "step": self.step,
            "item": self.item,
            **self.failure.shown(),
        }


@dataclass(frozen=True, slots=True)
class ChildrenSeen:
    """How many children are in which status, and the newest of them."""

    counts: dict[str, int] = field(default_factory=dict)
    newest: list[Projection] = field(default_factory=list)

    def shown(self) -> dict[str, Any]:
        return {
            "total": sum(self.counts.values()),
            "counts": self.counts,
            "newest": [
                {
                    "execution_id": row.execution_id,
                    "path": row.path,
                    "status": row.status,
                    "recovered": row.recovered,
                    "error": row.error,
                }
                for row in self.newest
            ],
        }


@dataclass(frozen=True, slots=True)
class Detail:
    row: Projection
    workload: dict[str, Any] | None  # None: too large to be shown here
    children: ChildrenSeen
    cause: Cause | None


def shown_workload(workload: dict[str, Any]) -> dict[str, Any]:
    """Without the keys of secrets."""
    shown: dict[str, Any] = stripped(workload)
    return shown


async def first_cause(state: Execution | None, read: ReadState) -> Cause | None:
    """Follows a failure down: from a loop to the item that failed first, from a step to the child that it called."""
    if state is None or state.failure is None or state.status != "failed":
        return None
    cause = _of_item(Cause(state.execution_id, state.path, state.failed_step, state.failure))
    for _ in range(MAX_DEPTH):
        child = cause.failure.detail.get("execution_id") if cause.failure.kind == "child" else None
        below = await read(ExecutionId(child)) if isinstance(child, str) else None
        if below is None or below.failure is None:
            return cause
        cause = _of_item(Cause(below.execution_id, below.path, below.failed_step, below.failure))
    return cause


def _of_item(cause: Cause) -> Cause:
    """Of a loop that failed: the failure of its first item."""
    detail = cause.failure.detail
    inner = detail.get("cause")
    if cause.failure.kind != "loop" or not isinstance(inner, dict):
        return cause
    failure = Failure(
        code=str(inner.get("code")),
        message=str(inner.get("message")),
        kind=str(inner.get("kind")),
        detail=inner.get("detail") or {},
    )
    return Cause(cause.execution_id, cause.path, cause.step, failure, detail.get("index"))
