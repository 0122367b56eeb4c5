"""The details of one execution: its row, workload, children, and the first causal failure."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from noetl.engine.state import Execution
from noetl.log.projections.port import Projection
from noetl.model.errors import Failure
from noetl.model.ids import ExecutionId
from noetl.model.secrets import strip_secrets

MAX_LISTED_CHILDREN = 20
MAX_SHOWN_WORKLOAD_BYTES = (
    64 * 1024
)  # shown with the execution; a larger one has a route of its own
MAX_CAUSE_DEPTH = 40  # children nest at most 32 deep

ReadState = Callable[[ExecutionId], Awaitable[Execution | None]]


@dataclass(frozen=True, slots=True)
class FailureCause:
    """The first causal failure: of a step of this execution or of a descendant.

    `item` is the index of the first failed item of a loop.
    """

    execution_id: ExecutionId
    path: str
    step: str | None
    failure: Failure
    item: int | None = None

    def to_dict(self) -> dict[str, Any]:
        return {
            "execution_id": self.execution_id,
            "path": self.path,
            "step": self.step,
            "item": self.item,
            **self.failure.to_template_map(),
        }


@dataclass(frozen=True, slots=True)
class ChildrenSummary:
    """The number of children by status, and the newest children."""

    counts: dict[str, int] = field(default_factory=dict)
    newest: list[Projection] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        newest = [
            {
                "execution_id": row.execution_id,
                "path": row.path,
                "status": row.status,
                "recovered": row.recovered,
                "error": row.error,
            }
            for row in self.newest
        ]
        return {
            "total": sum(self.counts.values()),
            "counts": self.counts,
            "newest": newest,
        }


@dataclass(frozen=True, slots=True)
class ExecutionDetail:
    """A row with the details that people see."""

    row: Projection
    workload: dict[str, Any] | None  # None: too large to be shown here
    children: ChildrenSummary
    cause: FailureCause | None


def strip_workload(workload: dict[str, Any]) -> dict[str, Any]:
    """The workload without keys that name secrets."""
    public: dict[str, Any] = strip_secrets(workload)
    return public


async def find_first_cause(state: Execution | None, read: ReadState) -> FailureCause | None:
    """Follow a failure down: from a loop to its first failed item, from a step to its child."""
    if state is None or state.failure is None or state.status != "failed":
        return None
    cause = _find_item_cause(
        FailureCause(state.execution_id, state.path, state.failed_step, state.failure)
    )
    for _ in range(MAX_CAUSE_DEPTH):
        if cause.failure.kind != "child":
            return cause
        child_id = cause.failure.detail.get("execution_id")
        if not isinstance(child_id, str):
            return cause
        child = await read(ExecutionId(child_id))
        if child is None or child.failure is None:
            return cause
        cause = _find_item_cause(
            FailureCause(child.execution_id, child.path, child.failed_step, child.failure)
        )
    return cause


def _find_item_cause(cause: FailureCause) -> FailureCause:
    """The failure of the first failed item if a loop failed; otherwise the cause itself."""
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
    return FailureCause(cause.execution_id, cause.path, cause.step, failure, detail.get("index"))
