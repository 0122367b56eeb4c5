"""The structs that answers about executions, their steps and their events have."""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, UnsetType

from noetl.log.events.port import RecordedEvent
from noetl.log.projections.port import Projection
from noetl.model.clock import format_iso, format_iso_or_none
from noetl.model.ids import ExecutionId
from noetl.server.executions.older_names import TOOL_STARTED_NAMES, get_tool_start
from noetl.server.http.structs import View, describe

RequestStatus = Literal["recorded", "accepted", "refused"]
EXAMPLE_ID = "724551830122291200"


class StartedView(View, frozen=True, kw_only=True):
    execution_id: Annotated[ExecutionId, describe(example=EXAMPLE_ID)]
    created: Annotated[
        bool | None, describe("false: the Idempotency-Key had started it before")
    ] = None
    seq: Annotated[
        int,
        describe(
            "a read with this as min_seq shows the execution; after `wait` it is the seq of its first event, "
            "and a list with it as min_seq shows the execution too"
        ),
    ]


class ExecutionView(View, frozen=True):
    execution_id: Annotated[str, describe(example=EXAMPLE_ID)]
    path: Annotated[str, describe(example="examples/hello")]
    status: Annotated[
        str,
        describe("pending, running, paused, cancelling, quarantined, or an end", example="running"),
    ]
    started_at: Annotated[str | None, describe(example="2026-01-02T03:04:05.678901Z")]
    updated_at: str | None
    ended_at: str | None
    parent: str | None
    retry_of: str | None
    error: str | None
    step_count: int
    recovered: Annotated[
        int, describe("failures that an error arc, a rule or a loop's failure policy handled")
    ]
    last_seq: Annotated[int, describe("what this row covers of the log")]


Question = Annotated[
    dict[str, Any],
    describe(
        "of an approval: what is asked, scalars of 1 KB together; a text alone is `message`",
        example={"who": "finance", "amount": 1030},
    ),
]


class AwaitedView(View, frozen=True):
    on: Annotated[
        str,
        describe(
            "approval, signal, paused, quarantined: a person can end it; or place, child, timer",
            example="approval",
        ),
    ]
    step: str | None
    name: Annotated[str | None, describe("of the signal; of a child, its id")]
    since: Annotated[str | None, describe("when its step began")]
    question: Question
    by: Annotated[str | None, describe("of an approval: who has started the execution")]


class ProgressView(View, frozen=True):
    step: str
    done: Annotated[int, describe("failed and skipped items too")]
    total: Annotated[int | None, describe("null: a cursor that has not come to its end")]
    failed: int


class ListedExecutionView(ExecutionView, frozen=True):
    waits_for: Annotated[AwaitedView | None, describe("of an execution that has not ended")]
    progress: Annotated[ProgressView | None, describe("of the loop that began last")]


class ExecutionsView(View, frozen=True):
    executions: list[ListedExecutionView]
    next: Annotated[
        str | None, describe("the `before` of the next page, also if this page is not full")
    ]
    looked_at: Annotated[
        int | None, describe("of a page that is not full: how many executions were looked at")
    ]


class CountView(View, frozen=True):
    n: int
    more: Annotated[bool, describe("there are more than were counted")]


class HistogramView(View, frozen=True, rename={"start": "from"}):
    start: Annotated[str, describe("when the first bucket begins")]
    width_ms: int
    by: Annotated[
        dict[str, list[int]],
        describe("by status: executions in each bucket", example={"failed": [0, 2]}),
    ]


class CountsView(View, frozen=True):
    counts: Annotated[
        dict[str, CountView],
        describe(
            "by status; `waiting`: those that wait for a person",
            example={"failed": {"n": 2, "more": False}},
        ),
    ]
    histogram: HistogramView
    reaches_back_to: Annotated[
        str | None,
        describe("the histogram has the newest executions only, those from this moment on"),
    ]


class LoopView(View, frozen=True):
    done: Annotated[int, describe("failed and skipped items too")]
    failed: int
    skipped: int
    total: Annotated[int | None, describe("null: a cursor that has not come to its end")]


class StepView(View, frozen=True):
    status: Annotated[
        str,
        describe(
            "waiting, running, completed, failed, skipped, cancelled or inherited",
            example="completed",
        ),
    ]
    runs: int
    started_at: Annotated[str | None, describe("of its last run")]
    ended_at: str | None
    seconds: Annotated[float | None, describe("how long its last run took; null while it runs")]
    loop: LoopView | None


class ChildView(View, frozen=True):
    execution_id: Annotated[str, describe(example=EXAMPLE_ID)]
    path: str
    status: str
    recovered: Annotated[int, describe("failures that it handled")]
    error: str | None


class ChildrenView(View, frozen=True):
    total: int
    counts: Annotated[dict[str, int], describe("by status", example={"completed": 3, "failed": 1})]
    newest: Annotated[
        list[ChildView], describe("20 of them; `GET /api/executions?parent=` lists all")
    ]


class CauseView(View, frozen=True):
    """A failure with the place where it happened; `detail` has the traceback (`trace`) or the
    response (`data`)."""

    execution_id: Annotated[
        str, describe("this execution, or a child somewhere below it", example=EXAMPLE_ID)
    ]
    path: str
    step: str | None
    item: Annotated[int | None, describe("of a loop: the index of the first item that failed")]
    code: Annotated[str, describe(example="PYTHON_ERROR")]
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
    by: Annotated[str, describe("what handled it", example="arc to repair")]
    code: Annotated[str, describe(example="PYTHON_ERROR")]
    message: Annotated[str, describe("of the first failure of this kind")]
    count: int


class StateUseView(View, frozen=True):
    value: Annotated[Any, describe("as this execution sees it")]
    unset: Annotated[bool, describe("nobody has set it")]
    read_version: int
    version: Annotated[int, describe("after its own writes")]
    writes: int
    conflict_version: Annotated[
        int | None, describe("what somebody else has written since: writes of it fail")
    ]
    conflict_by: str | None


class DetailedView(ExecutionView, frozen=True):
    by: Annotated[
        str | None,
        describe(
            "who started it: a user, an execution, a schedule or a hook",
            example=f"execution:{EXAMPLE_ID}",
        ),
    ]
    version: int | None
    from_step: Annotated[
        str | None, describe("of a rerun: the step of `retry_of` from which everything runs again")
    ]
    playbook: Annotated[str | None, describe("hash of the text it is pinned to")]
    failure: Annotated[dict[str, Any] | None, describe("why this execution failed")]
    cause: Annotated[
        CauseView | None,
        describe("the first causal failure: that of a child's step when a child failed"),
    ]
    steps: dict[str, StepView]
    workload: Annotated[
        dict[str, Any] | None,
        describe("without keys that name secrets; null: larger than 64 KB, `…/workload` has it"),
    ]
    children: ChildrenView
    recoveries: Annotated[
        list[RecoveryView], describe("what was recovered from: the first kinds of failures")
    ]
    state: Annotated[
        dict[str, StateUseView], describe("values of the playbook's state that it read and wrote")
    ]


class StatusView(View, frozen=True):
    execution_id: str
    status: Annotated[str, describe(example="completed")]
    ended: bool
    recovered: int
    error: str | None
    last_seq: int


class EventView(View, frozen=True):
    seq: int
    execution_id: str
    type: Annotated[str, describe(example="step.exit")]
    at: str
    emitter: str
    key: str
    data: Annotated[Any, Meta(extra_json_schema={"type": "object"})]  # the event itself
    of: Annotated[
        str | UnsetType | None, describe("under an older name: the event it is a view of")
    ] = UNSET


class NumberedEventView(EventView, frozen=True, kw_only=True):
    number: Annotated[int, describe("among the events of the execution, from 1")]


class AskedView(View, frozen=True):
    execution_id: Annotated[ExecutionId, describe(example=EXAMPLE_ID)]
    request: Annotated[
        str, describe("its key; a repeat with it as Idempotency-Key has no further effect")
    ]
    status: RequestStatus
    seq: Annotated[int | None, describe("where it stands in the log, when it was recorded in time")]
    reason: Annotated[str | None, describe("why it was refused")] = None


class OutcomeView(View, frozen=True):
    execution_id: Annotated[str, describe(example=EXAMPLE_ID)]
    ok: bool
    started: Annotated[str | None, describe("of a retry: the new execution")] = None
    code: Annotated[str | None, describe("why not", example="CONFLICT")] = None
    message: str | None = None


class BulkView(View, frozen=True):
    outcomes: Annotated[list[OutcomeView], describe("in the order of the request, each id once")]


class ItemsView(View, frozen=True):
    again: int
    total: int
    left: Annotated[int, describe("failed items that were not chosen and stay failed")]
    fails_again: Annotated[
        bool, describe("the loop fails even if all chosen items succeed: `left` are too many")
    ]


class ChangeView(View, frozen=True):
    before: Any
    after: Any


class EnteredView(View, frozen=True):
    run: Annotated[
        int, describe("which activation of the step it is, counted from 1: the last one")
    ]
    at: Annotated[str, describe(example="2026-01-02T03:04:05.678901Z")]


class WayView(View, frozen=True):
    """Where a step that runs again leads."""

    step: str
    to: Annotated[list[str], describe("steps that follow it in any case, side by side")]
    maybe: Annotated[list[str], describe("steps that follow it if their guards hold")]
    one: Annotated[bool, describe("at most one of `maybe` follows")]
    has_else: Annotated[bool, describe("with `one`: exactly one of `maybe` follows")]


class RepeatView(View, frozen=True):
    execution_id: Annotated[str, describe(example=EXAMPLE_ID)]
    how: Literal["retry", "rerun"]
    path: str
    version: Annotated[int | None, describe("the version that would run")]
    version_before: int | None
    inherited: Annotated[list[str], describe("steps that are taken over with their results")]
    entered: Annotated[
        EnteredView | None,
        describe(
            "for a rerun from a step: the activation of that step that gives the variables, results and arguments "
            "to begin with"
        ),
    ]
    begins: Annotated[list[str], describe("steps that it begins with")]
    again: Annotated[
        list[str], describe("steps that run again, if the guards lead there as they did")
    ]
    ways: Annotated[
        list[WayView],
        describe("where the steps of `again` lead, without those that lead nowhere"),
    ]
    items: Annotated[dict[str, ItemsView], describe("by loop: how many of its items run again")]
    writes_again: Annotated[
        dict[str, list[str]],
        describe(
            "by step: variables and state that have a value of the earlier execution and that the step assigns again"
        ),
    ]
    changed_loops: Annotated[
        list[str],
        describe(
            "loops of which only failed items run again, although this version has another `loop.in`"
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
