"""The structs that answers about executions, their steps and their events have."""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, UnsetType

from noetl.log.port import Projection, RecordedEvent
from noetl.model.clock import format_iso, format_iso_or_none
from noetl.model.ids import ExecutionId
from noetl.server.executions.older_names import TOOL_STARTED_NAMES, get_tool_start
from noetl.server.http.bodies import View

RequestStatus = Literal["recorded", "accepted", "refused"]
EXAMPLE_ID = "724551830122291200"


class StartedView(View, frozen=True, kw_only=True):
    execution_id: Annotated[ExecutionId, Meta(examples=[EXAMPLE_ID])]
    created: Annotated[
        bool | None, Meta(description="false: the Idempotency-Key had started it before")
    ] = None
    seq: Annotated[
        int,
        Meta(
            description="a read with this as min_seq shows the execution; after `wait` it is the seq of its first event, "
            "and a list with it as min_seq shows the execution too"
        ),
    ]


class ExecutionView(View, frozen=True):
    execution_id: Annotated[str, Meta(examples=[EXAMPLE_ID])]
    path: Annotated[str, Meta(examples=["examples/hello"])]
    status: Annotated[
        str,
        Meta(
            examples=["running"],
            description="pending, running, paused, cancelling, quarantined, or an end",
        ),
    ]
    started_at: Annotated[str | None, Meta(examples=["2026-01-02T03:04:05.678901Z"])]
    updated_at: str | None
    ended_at: str | None
    parent: str | None
    retry_of: str | None
    error: str | None
    step_count: int
    recovered: Annotated[
        int,
        Meta(description="failures that an error arc, a rule or a loop's failure policy handled"),
    ]
    last_seq: Annotated[int, Meta(description="what this row covers of the log")]


class ExecutionsView(View, frozen=True):
    executions: list[ExecutionView]
    next: Annotated[str | None, Meta(description="the `before` of the next page")]


class LoopView(View, frozen=True):
    done: Annotated[int, Meta(description="failed and skipped items too")]
    failed: int
    skipped: int
    total: Annotated[int | None, Meta(description="null: a cursor that has not come to its end")]


class StepView(View, frozen=True):
    status: Annotated[
        str,
        Meta(
            examples=["completed"],
            description="waiting, running, completed, failed, skipped, cancelled or inherited",
        ),
    ]
    runs: int
    started_at: Annotated[str | None, Meta(description="of its last run")]
    ended_at: str | None
    seconds: Annotated[
        float | None, Meta(description="how long its last run took; null while it runs")
    ]
    loop: LoopView | None


class ChildView(View, frozen=True):
    execution_id: Annotated[str, Meta(examples=[EXAMPLE_ID])]
    path: str
    status: str
    recovered: Annotated[int, Meta(description="failures that it handled")]
    error: str | None


class ChildrenView(View, frozen=True):
    total: int
    counts: Annotated[
        dict[str, int], Meta(description="by status", examples=[{"completed": 3, "failed": 1}])
    ]
    newest: Annotated[
        list[ChildView], Meta(description="20 of them; `GET /api/executions?parent=` lists all")
    ]


class CauseView(View, frozen=True):
    """A failure with the place where it happened; `detail` has the traceback (`trace`) or the
    response (`data`)."""

    execution_id: Annotated[
        str,
        Meta(examples=[EXAMPLE_ID], description="this execution, or a child somewhere below it"),
    ]
    path: str
    step: str | None
    item: Annotated[
        int | None, Meta(description="of a loop: the index of the first item that failed")
    ]
    code: Annotated[str, Meta(examples=["PYTHON_ERROR"])]
    message: str
    kind: str
    retryable: bool
    http_status: int | None
    sqlstate: str | None
    task: str | None
    attempt: int | None
    detail: dict[str, Any]


class RecoveryView(View, frozen=True):
    step: str
    task: str | None
    by: Annotated[str, Meta(examples=["arc to repair"], description="what handled it")]
    code: Annotated[str, Meta(examples=["PYTHON_ERROR"])]
    message: Annotated[str, Meta(description="of the first failure of this kind")]
    count: int


class StateUseView(View, frozen=True):
    value: Annotated[Any, Meta(description="as this execution sees it")]
    unset: Annotated[bool, Meta(description="nobody has set it")]
    read_version: int
    version: Annotated[int, Meta(description="after its own writes")]
    writes: int
    conflict_version: Annotated[
        int | None, Meta(description="what somebody else has written since: writes of it fail")
    ]
    conflict_by: str | None


class DetailedView(ExecutionView, frozen=True):
    by: Annotated[
        str | None,
        Meta(
            examples=[f"execution:{EXAMPLE_ID}"],
            description="who started it: a user, an execution, a schedule or a hook",
        ),
    ]
    version: int | None
    from_step: Annotated[
        str | None,
        Meta(description="of a rerun: the step of `retry_of` from which everything runs again"),
    ]
    playbook: Annotated[str | None, Meta(description="hash of the text it is pinned to")]
    failure: Annotated[dict[str, Any] | None, Meta(description="why this execution failed")]
    cause: Annotated[
        CauseView | None,
        Meta(description="the first causal failure: that of a child's step when a child failed"),
    ]
    steps: dict[str, StepView]
    workload: Annotated[
        dict[str, Any] | None,
        Meta(
            description="without keys that name secrets; null: larger than 64 KB, `…/workload` has it"
        ),
    ]
    children: ChildrenView
    recoveries: Annotated[
        list[RecoveryView], Meta(description="what was recovered from: the first kinds of failures")
    ]
    state: Annotated[
        dict[str, StateUseView],
        Meta(description="values of the playbook's state that it read and wrote"),
    ]


class StatusView(View, frozen=True):
    execution_id: str
    status: Annotated[str, Meta(examples=["completed"])]
    ended: bool
    recovered: int
    error: str | None
    last_seq: int


class EventView(View, frozen=True):
    seq: int
    execution_id: str
    type: Annotated[str, Meta(examples=["step.exit"])]
    at: str
    emitter: str
    key: str
    data: Annotated[Any, Meta(extra_json_schema={"type": "object"})]  # the event itself
    of: Annotated[
        str | UnsetType | None, Meta(description="under an older name: the event it is a view of")
    ] = UNSET


class EventsView(View, frozen=True):
    events: list[EventView]
    next: Annotated[
        int | None, Meta(description="the `after` of the next page; null: that was all")
    ]


class ExplanationView(View, frozen=True):
    step: str
    verdict: Annotated[str, Meta(examples=["waiting"])]
    because: list[str]
    runs: int


class AskedView(View, frozen=True):
    execution_id: Annotated[ExecutionId, Meta(examples=[EXAMPLE_ID])]
    request: Annotated[
        str, Meta(description="its key; a repeat with it as Idempotency-Key has no further effect")
    ]
    status: RequestStatus
    seq: Annotated[
        int | None, Meta(description="where it stands in the log, when it was recorded in time")
    ]
    reason: Annotated[str | None, Meta(description="why it was refused")] = None


class ItemsView(View, frozen=True):
    again: int
    total: int


class ChangeView(View, frozen=True):
    before: Any
    after: Any


class EnteredView(View, frozen=True):
    run: Annotated[
        int, Meta(description="which activation of the step it is, counted from 1: the last one")
    ]
    at: Annotated[str, Meta(examples=["2026-01-02T03:04:05.678901Z"])]


class RepeatView(View, frozen=True):
    execution_id: Annotated[str, Meta(examples=[EXAMPLE_ID])]
    how: Literal["retry", "rerun"]
    path: str
    version: Annotated[int | None, Meta(description="the version that would run")]
    version_before: int | None
    inherited: Annotated[
        list[str], Meta(description="steps that are taken over with their results")
    ]
    entered: Annotated[
        EnteredView | None,
        Meta(
            description="for a rerun from a step: the activation of that step that gives the variables, results and arguments "
            "to begin with"
        ),
    ]
    begins: Annotated[list[str], Meta(description="steps that it begins with")]
    again: Annotated[
        list[str], Meta(description="steps that run again, if the guards lead there as they did")
    ]
    items: Annotated[
        dict[str, ItemsView], Meta(description="by loop: how many of its items run again")
    ]
    writes_again: Annotated[
        dict[str, list[str]],
        Meta(
            description="by step: variables and state that have a value of the earlier execution and that the step assigns again"
        ),
    ]
    changed_loops: Annotated[
        list[str],
        Meta(
            description="loops of which only failed items run again, although this version has another `loop.in`"
        ),
    ]
    workload_changes: dict[str, ChangeView]


def make_execution_view(row: Projection) -> ExecutionView:
    return ExecutionView(
        execution_id=row.execution_id,
        path=row.path,
        status=row.status,
        started_at=format_iso_or_none(row.started_at),
        updated_at=format_iso_or_none(row.updated_at),
        ended_at=format_iso_or_none(row.ended_at),
        parent=row.parent,
        retry_of=row.retry_of,
        error=row.error,
        step_count=row.steps,
        recovered=row.recovered,
        last_seq=row.last_seq,
    )


def make_event_view(recorded: RecordedEvent, older: str | None = None) -> EventView:
    """An event; `data` is the event as the log has it. Under an `older` name, `of` is its type."""
    fact = recorded.event
    at = get_tool_start(fact) if older in TOOL_STARTED_NAMES else fact.at
    return EventView(
        seq=recorded.seq,
        execution_id=recorded.execution_id,
        type=older or fact.type,
        at=format_iso(at),
        emitter=fact.emitter,
        key=fact.key,
        data=fact,
        of=UNSET if older is None else fact.type,
    )
