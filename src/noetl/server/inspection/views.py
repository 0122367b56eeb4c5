"""The structs of answers about the inside of an execution."""

from typing import Annotated, Any, Literal

from noetl.engine.causes import AnyCause
from noetl.server.executions.views import (
    EXAMPLE_ID,
    CauseView,
    ChildrenView,
    NumberedEventView,
    Question,
    RecoveryView,
    StateUseView,
)
from noetl.server.http.structs import View, describe

EXAMPLE_TIME = "2026-01-02T03:04:05.678901Z"
WaitReason = Literal["signal", "approval", "child", "timer", "retry", "worker", "place"]


class WaitsView(View, frozen=True, kw_only=True):
    """What a step or a command waits for."""

    on: WaitReason
    name: Annotated[str | None, describe("of the signal")] = None
    since: str | None = None
    until: str | None = None
    child: Annotated[str | None, describe("the execution that it waits for")] = None
    pool: str | None = None
    task: str | None = None
    question: Question = {}


class ErrorView(View, frozen=True):
    code: Annotated[str, describe(example="PYTHON_ERROR")]
    message: str


class LoopCountsView(View, frozen=True, kw_only=True):
    total: Annotated[int | None, describe("null: a cursor that has not come to its end")]
    done: Annotated[int, describe("failed and skipped items too")]
    ok: int
    failed: int
    skipped: int
    left: Annotated[int, describe("of a retry of chosen items: failed ones that it leaves out")]
    running: Annotated[int, describe("items that may run now")]
    rate: Annotated[float | None, describe("items per second, as of late")]
    seconds_left: float | None


class PageStepView(View, frozen=True, kw_only=True):
    status: Annotated[
        str,
        describe(
            "waiting, running, completed, failed, skipped, cancelled or inherited",
            example="completed",
        ),
    ]
    runs: int
    entered_at: Annotated[str | None, describe("of its last run", example=EXAMPLE_TIME)]
    ended_at: str | None
    first_seq: int | None
    last_seq: int | None
    seconds: Annotated[float | None, describe("how long its last run took; null while it runs")]
    loop: LoopCountsView | None
    waits: WaitsView | None
    error: ErrorView | None


class VerdictView(View, frozen=True):
    verdict: Annotated[str, describe(example="taken")]
    saw: Annotated[dict[str, Any], describe("the values that its guard used", example={"n": 3})]
    seq: int


class PageArcView(View, frozen=True, kw_only=True):
    taken: int
    false: int
    error: int
    untried: int
    last: VerdictView | None


class FirstFailureView(View, frozen=True):
    item: Annotated[int | None, describe("the index of the first item of this kind")]
    seq: int
    message: str


class FailureKindView(View, frozen=True, kw_only=True):
    shape: Annotated[str, describe("the message without its numbers and quoted parts")]
    code: Annotated[str, describe(example="PYTHON_ERROR")]
    step: str
    count: int
    first: FirstFailureView


class FailuresView(View, frozen=True):
    total: int
    kinds: Annotated[list[FailureKindView], describe("8 of a step, 50 in all")]


class LiveCommandView(View, frozen=True, kw_only=True):
    command_id: str
    step: str
    run: int
    kind: str
    first: int
    count: int
    attempt: int
    issued_at: str | None
    worker: str | None
    waits: WaitsView | None
    repeats: Annotated[
        bool, describe("its items had failed before and run again; `first` counts among these")
    ]
    indexes: Annotated[
        list[int] | None,
        describe("with `repeats`: the lowest and the highest index of its items, once known"),
    ]


class PageFailureView(CauseView, frozen=True, kw_only=True):
    """The first causal failure: that of a child's step when a child failed."""

    run: int | None
    seq: Annotated[int | None, describe("the event, if it is one of this execution")]
    line: Annotated[
        int | None,
        describe(
            "in the playbook's text: of the code that failed if it is known, else of the step"
        ),
    ]


class ResultReferenceView(View, frozen=True):
    ref_id: str
    uri: str
    tier: str
    bytes: int | None
    rows: int | None
    format: str | None


class PageView(View, frozen=True, kw_only=True):
    """An execution as of one of its events."""

    execution_id: Annotated[str, describe(example=EXAMPLE_ID)]
    path: Annotated[str, describe(example="examples/hello")]
    version: int | None
    playbook: Annotated[str | None, describe("hash of the text it is pinned to")]
    by: str | None
    parent: str | None
    retry_of: str | None
    retried_by: Annotated[list[str], describe("the newest 20")]
    from_step: str | None
    status: Annotated[str, describe(example="running")]
    started_at: Annotated[str | None, describe(example=EXAMPLE_TIME)]
    ended_at: str | None
    updated_at: str | None
    error: str | None
    recovered: int
    seq: Annotated[int, describe("the event as of which this is")]
    number: Annotated[int, describe("its number among the events of the execution, from 1")]
    at: str | None
    events: Annotated[int, describe("events that the execution has now")]
    last_seq: int
    is_live: Annotated[bool, describe("no earlier event was asked for")]
    failure: PageFailureView | None
    ctx: Annotated[dict[str, Any] | None, describe("null: larger than 16 KB, or left out")]
    ctx_bytes: int
    workload_keys: list[str]
    steps: dict[str, PageStepView]
    arcs: Annotated[
        dict[str, PageArcView],
        describe(
            "by step and number of the arc in it from 0; `step:skip:n`: the way onward if admission rule n skips it"
        ),
    ]
    failures: FailuresView
    live: Annotated[list[LiveCommandView], describe("commands that have not ended; the first 50")]
    live_total: int
    result: ResultReferenceView | None
    result_step: str | None
    children: ChildrenView
    recoveries: list[RecoveryView]
    state: dict[str, StateUseView]
    left_out: Annotated[
        list[str], describe("what was left out, because the answer would be larger than 64 KB")
    ]


# ---- the timeline ---------------------------------------------------------------------------------


class BandView(View, frozen=True, kw_only=True):
    """What happened at a step in buckets of equal width."""

    first_at: str | None
    last_at: str | None
    first_seq: int
    last_seq: int
    width_us: int
    start: Annotated[str, describe("of the first bucket", example=EXAMPLE_TIME)]
    started: list[int]
    ended: list[int]
    items: list[int]
    failed: list[int]
    retried: list[int]
    busy_us: Annotated[list[int], describe("time that workers spent, of all commands together")]
    slowest_us: Annotated[list[int], describe("the longest command that ended in the bucket")]


class SpanView(View, frozen=True, kw_only=True):
    """One attempt of a command."""

    step: str
    run: int
    command_id: str
    kind: str
    attempt: int
    first: int
    count: int
    issued: str | None
    started: str | None
    ended: str | None
    ok: int
    failed: int
    skipped: int
    status: Annotated[str, describe("running, waiting, completed, failed, returned or cancelled")]
    reason: Annotated[str | None, describe("what it waits for, or why it was returned")]
    worker: str | None
    repeats: Annotated[
        bool, describe("its items had failed before and run again; `first` counts among these")
    ]
    indexes: Annotated[
        list[int] | None,
        describe("with `repeats`: the lowest and the highest index of its items, once known"),
    ]


class MarkView(View, frozen=True):
    at: str
    seq: int
    kind: Annotated[str, describe(example="failed")]
    step: str | None


class TimelineView(View, frozen=True, kw_only=True, rename={"from_": "from"}):
    from_: Annotated[str, describe(example=EXAMPLE_TIME)]
    to: str
    exact: Annotated[bool, describe("`spans` has every command of the window")]
    steps: dict[str, BandView]
    spans: list[SpanView] | None
    next_zoom: Annotated[
        dict[str, str] | None, describe("`from` and `to` of the first part that has spans")
    ]
    marks: list[MarkView]


# ---- events, runs, explanations --------------------------------------------------------------------


class ToldEventView(NumberedEventView, frozen=True, kw_only=True):
    causes: Annotated[list[int], describe("`seq` of the events that led to it, of this page")]
    led_to: Annotated[list[int], describe("`seq` of the events that it led to, of this page")]
    summary: Annotated[str, describe("one line of plain text", example="score entered, run 2")]


class ToldEventsView(View, frozen=True):
    events: list[ToldEventView]
    next: Annotated[
        int | None, describe("the `after` (or `before`) of the next page; null: that was all")
    ]
    looked_at: Annotated[int, describe("events that were read for this page")]


class ExplanationView(View, frozen=True, kw_only=True):
    step: str
    verdict: Annotated[
        str,
        describe(
            "ran, failed, skipped, inherited, running, waiting, held, cancelled, not reached",
            example="waiting",
        ),
    ]
    runs: int
    because: Annotated[list[str], describe("`causes` as sentences")]
    causes: Annotated[
        list[AnyCause], describe("the most direct one first, told apart by their `kind`")
    ]
    numbers: Annotated[
        list[int | None],
        describe("for each of `causes`: the number of its event in the execution", example=[7]),
    ]


class AttemptView(View, frozen=True, kw_only=True):
    command_id: str
    attempt: int
    first: Annotated[int, describe("of a loop: its first item")]
    count: Annotated[int, describe("of a loop: its items")]
    worker: str | None
    claimed_at: str | None
    started_at: str | None
    ended_at: str | None
    status: Annotated[str, describe(example="completed")]
    error: ErrorView | None
    repeats: Annotated[
        bool, describe("its items had failed before and run again; `first` counts among these")
    ]
    indexes: Annotated[
        list[int] | None,
        describe("with `repeats`: the lowest and the highest index of its items, once known"),
    ]


class RunView(View, frozen=True, kw_only=True):
    run: int
    status: Annotated[str, describe(example="completed")]
    entered_at: str | None
    ended_at: str | None
    first_seq: int
    last_seq: int
    args: Annotated[dict[str, Any] | None, describe("null: larger than 4 KB, or not read")]
    stats: Annotated[
        dict[str, int] | None, describe("of a loop", example={"total": 3, "ok": 2, "failed": 1})
    ]
    error: ErrorView | None
    attempts: Annotated[list[AttemptView], describe("the first 20")]
    attempts_total: Annotated[
        int | None, describe("null: its events were not all read, so there may be more")
    ]


class RunsView(View, frozen=True):
    runs: Annotated[list[RunView], describe("newest first")]
    next: Annotated[int | None, describe("the `before` of the next page; null: that was all")]
    looked_at: Annotated[int, describe("events that were read for this page")]


# ---- the stream ---------------------------------------------------------------------------------


class BandChangeView(View, frozen=True, kw_only=True, rename={"from_": "from"}):
    """The buckets of a step from the number `from` on; those before it are as they were."""

    start: str
    width_us: int
    from_: int
    last_seq: int
    started: list[int]
    ended: list[int]
    items: list[int]
    failed: list[int]
    retried: list[int]
    busy_us: list[int]
    slowest_us: list[int]


class ChangeOfPageView(View, frozen=True, kw_only=True):
    """What has changed since the last message of the stream."""

    seq: int
    number: int
    events: int
    status: str
    updated_at: str | None
    ended_at: str | None
    error: str | None
    failure: PageFailureView | None
    steps: dict[str, PageStepView]
    arcs: dict[str, PageArcView]
    failures: FailuresView
    live: list[LiveCommandView]
    live_total: int
    bands: dict[str, BandChangeView]
    logs_part: int
