"""The details of one execution: its workload, and the first causal failure."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from noetl.engine.state import Execution
from noetl.model.errors import Failure
from noetl.model.ids import ExecutionId
from noetl.model.secrets import strip_secrets
from noetl.server.executions.views import CauseView

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

    def make_view(self) -> CauseView:
        return CauseView(
            execution_id=self.execution_id,
            path=self.path,
            step=self.step,
            item=self.item,
            **self.failure.to_template_map(),
        )


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
