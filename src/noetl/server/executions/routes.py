"""Routes for executions: start, list, read, change."""

from re import fullmatch
from typing import Annotated, Any, Literal

import msgspec
from fastapi import Path, Query, Response
from pydantic import Field, model_validator

from noetl.log.events.port import RecordedEvent
from noetl.model.identity import Identity
from noetl.model.ids import ExecutionId
from noetl.server.dispatch.requests import RepeatWish
from noetl.server.executions.requests import RequestOutcome, RequestStatus
from noetl.server.executions.service import StartedExecution, make_execution_filter
from noetl.server.http import shapes
from noetl.server.http.bodies import (
    EXECUTION_ID,
    AfterSeq,
    Id,
    Key,
    Limit,
    MinSeq,
    OfParent,
    OfPath,
    OfStatus,
    RequestBody,
    Since,
    View,
    make_router,
)
from noetl.server.http.depends import Has, Now, Who
from noetl.server.services import Services
from noetl.server.signals.service import OutsideSignal

routes = make_router("executions")

EXAMPLE_ID = "724551830122291200"
Before = Annotated[
    str | None,
    Query(
        pattern=rf"^{EXECUTION_ID}$",
        description="older than this execution: `next` of the page before",
    ),
]
Name = Annotated[str, Path(max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$")]


class Execute(RequestBody):
    """Names a playbook: either by `path` in the catalog, with a `version`, or by the hash of its
    text as `playbook`. In an older spelling `playbook` is a path."""

    path: str | None = Field(default=None, max_length=200, examples=["examples/hello"])
    playbook: str | None = Field(default=None, max_length=200)
    version: int | Literal["latest"] | None = Field(default=None, examples=[3])
    payload: dict[str, Any] = Field(
        default={}, description="merged over the playbook's workload", examples=[{"n": 3}]
    )

    @model_validator(mode="after")
    def _check_one_of_both(self) -> "Execute":
        if (self.path is None) == (self.playbook is None):
            raise ValueError("give either path or playbook")
        return self


Wait = Annotated[bool, Query(description="answer when it has begun, or after a second")]


class StartedView(View):
    execution_id: str = Field(examples=[EXAMPLE_ID])
    created: bool | None = Field(
        default=None, description="false: the Idempotency-Key had started it before"
    )
    seq: int = Field(
        description="a read with this as min_seq shows the execution; after `wait` it is the seq of its first event, "
        "and a list with it as min_seq shows the execution too"
    )


class ExecutionView(View):
    execution_id: str = Field(examples=[EXAMPLE_ID])
    path: str = Field(examples=["examples/hello"])
    status: str = Field(
        examples=["running"],
        description="pending, running, paused, cancelling, quarantined, or an end",
    )
    started_at: str | None = Field(examples=["2026-01-02T03:04:05.678901Z"])
    updated_at: str | None
    ended_at: str | None
    parent: str | None
    retry_of: str | None
    error: str | None
    step_count: int
    recovered: int = Field(
        description="failures that an error arc, a rule or a loop's failure policy handled"
    )
    last_seq: int = Field(description="what this row covers of the log")


class ExecutionsView(View):
    executions: list[ExecutionView]
    next: str | None = Field(description="the `before` of the next page")


class LoopView(View):
    done: int = Field(description="failed and skipped items too")
    failed: int
    skipped: int
    total: int | None = Field(description="null: a cursor that has not come to its end")


class StepView(View):
    status: str = Field(
        examples=["completed"],
        description="waiting, running, completed, failed, skipped, cancelled or inherited",
    )
    runs: int
    started_at: str | None = Field(description="of its last run")
    ended_at: str | None
    seconds: float | None = Field(description="how long its last run took; null while it runs")
    loop: LoopView | None


class ChildView(View):
    execution_id: str = Field(examples=[EXAMPLE_ID])
    path: str
    status: str
    recovered: int = Field(description="failures that it handled")
    error: str | None


class ChildrenView(View):
    total: int
    counts: dict[str, int] = Field(
        description="by status", examples=[{"completed": 3, "failed": 1}]
    )
    newest: list[ChildView] = Field(
        description="20 of them; `GET /api/executions?parent=` lists all"
    )


class CauseView(View):
    """A failure with the place where it happened; `detail` has the traceback (`trace`) or the
    response (`data`)."""

    execution_id: str = Field(
        examples=[EXAMPLE_ID], description="this execution, or a child somewhere below it"
    )
    path: str
    step: str | None
    item: int | None = Field(description="of a loop: the index of the first item that failed")
    code: str = Field(examples=["PYTHON_ERROR"])
    message: str
    kind: str
    retryable: bool
    http_status: int | None
    sqlstate: str | None
    task: str | None
    attempt: int | None
    detail: dict[str, Any]


class RecoveryView(View):
    step: str
    task: str | None
    by: str = Field(examples=["arc to repair"], description="what handled it")
    code: str = Field(examples=["PYTHON_ERROR"])
    message: str = Field(description="of the first failure of this kind")
    count: int


class StateUseView(View):
    value: Any = Field(description="as this execution sees it")
    unset: bool = Field(description="nobody has set it")
    read_version: int
    version: int = Field(description="after its own writes")
    writes: int
    conflict_version: int | None = Field(
        description="what somebody else has written since: writes of it fail"
    )
    conflict_by: str | None


class DetailedView(ExecutionView):
    by: str | None = Field(
        examples=[f"execution:{EXAMPLE_ID}"],
        description="who started it: a user, an execution, a schedule or a hook",
    )
    version: int | None
    from_step: str | None = Field(
        description="of a rerun: the step of `retry_of` from which everything runs again"
    )
    playbook: str | None = Field(description="hash of the text it is pinned to")
    failure: dict[str, Any] | None = Field(description="why this execution failed")
    cause: CauseView | None = Field(
        description="the first causal failure: that of a child's step when a child failed"
    )
    steps: dict[str, StepView]
    workload: dict[str, Any] | None = Field(
        description="without keys that name secrets; null: larger than 64 KB, `…/workload` has it"
    )
    children: ChildrenView
    recoveries: list[RecoveryView] = Field(
        description="what was recovered from: the first kinds of failures"
    )
    state: dict[str, StateUseView] = Field(
        description="values of the playbook's state that it read and wrote"
    )


class StatusView(View):
    execution_id: str
    status: str = Field(examples=["completed"])
    ended: bool
    recovered: int
    error: str | None
    last_seq: int


class EventView(View):
    seq: int
    execution_id: str
    type: str = Field(examples=["step.exit"])
    at: str
    emitter: str
    key: str
    data: dict[str, Any]
    of: str | None = Field(
        default=None, description="under an older name: the event it is a view of"
    )


class EventsView(View):
    events: list[EventView]
    next: int | None = Field(description="the `after` of the next page; null: that was all")


class ExplanationView(View):
    step: str
    verdict: str = Field(examples=["waiting"])
    because: list[str]
    runs: int


class AskedView(View):
    execution_id: str = Field(examples=[EXAMPLE_ID])
    request: str = Field(
        description="its key; a repeat with it as Idempotency-Key has no further effect"
    )
    status: RequestStatus
    seq: int | None = Field(description="where it stands in the log, when it was recorded in time")
    reason: str | None = Field(default=None, description="why it was refused")


class RetryBody(RequestBody):
    version: int | Literal["latest"] | None = Field(
        default=None, description="null: the version it had", examples=[3]
    )
    payload: dict[str, Any] = Field(
        default={}, description="merged over its workload", examples=[{"n": 3}]
    )


class RerunBody(RetryBody):
    from_step: str | None = Field(
        default=None,
        max_length=200,
        description="this step and what follows from it run; null: from the beginning",
    )


class ItemsView(View):
    again: int
    total: int


class ChangeView(View):
    before: Any
    after: Any


class EnteredView(View):
    run: int = Field(description="which activation of the step it is, counted from 1: the last one")
    at: str = Field(examples=["2026-01-02T03:04:05.678901Z"])


class RepeatView(View):
    execution_id: str = Field(examples=[EXAMPLE_ID])
    how: Literal["retry", "rerun"]
    path: str
    version: int | None = Field(description="the version that would run")
    version_before: int | None
    inherited: list[str] = Field(description="steps that are taken over with their results")
    entered: EnteredView | None = Field(
        description="for a rerun from a step: the activation of that step that gives the variables, results and arguments "
        "to begin with"
    )
    begins: list[str] = Field(description="steps that it begins with")
    again: list[str] = Field(
        description="steps that run again, if the guards lead there as they did"
    )
    items: dict[str, ItemsView] = Field(description="by loop: how many of its items run again")
    writes_again: dict[str, list[str]] = Field(
        description="by step: variables and state that have a value of the earlier execution and that the step assigns again"
    )
    changed_loops: list[str] = Field(
        description="loops of which only failed items run again, although this version has another `loop.in`"
    )
    workload_changes: dict[str, ChangeView]


class SignalBody(RequestBody):
    payload: Any = None


def make_started_view(started: StartedExecution) -> StartedView:
    return StartedView(execution_id=started.execution_id, created=started.created, seq=started.seq)


def make_asked_view(outcome: RequestOutcome) -> AskedView:
    return AskedView(
        execution_id=outcome.execution_id,
        request=outcome.request,
        status=outcome.status,
        seq=outcome.seq,
        reason=outcome.reason,
    )


# -- starting --


@routes.post("/api/executions/execute", status_code=202)
@routes.post("/api/execute", status_code=202, name="execute")
async def start_execution(
    body: Execute, has: Has, who: Who, key: Key = None, wait: Wait = False
) -> StartedView:
    """Start a playbook. With an Idempotency-Key a repeat gives the same execution; 409 if the key
    was used for another one."""
    path = body.path
    content = None
    if body.playbook is not None and fullmatch("[0-9a-f]{64}", body.playbook):
        path = None
        content = body.playbook
    elif path is None:
        path = body.playbook
    started = await has.executions.start(
        who,
        path=path,
        content=content,
        version=body.version,
        payload=body.payload,
        key=key,
        wait=wait,
    )
    return make_started_view(started)


@routes.post("/api/executions/{execution_id}/retry", status_code=202)
async def retry_execution(
    execution_id: Id,
    has: Has,
    who: Who,
    body: RetryBody | None = None,
    key: Key = None,
    wait: Wait = False,
) -> StartedView:
    """Start an execution that takes over what the ended one finished, and runs the rest. A
    completed execution is retried from its loops with failed items (`best_effort`): these items run
    again, and the steps after the loop."""
    wish = _make_retry_wish(body)
    started = await has.executions.repeat(who, ExecutionId(execution_id), wish, key, wait=wait)
    return make_started_view(started)


@routes.post("/api/executions/{execution_id}/rerun", status_code=202)
async def rerun_execution(
    execution_id: Id,
    has: Has,
    who: Who,
    body: RerunBody | None = None,
    key: Key = None,
    wait: Wait = False,
) -> StartedView:
    """Run the same playbook and workload from the beginning, or from a step with the results of the
    steps before it."""
    wish = _make_rerun_wish(body)
    started = await has.executions.repeat(who, ExecutionId(execution_id), wish, key, wait=wait)
    return make_started_view(started)


@routes.post("/api/executions/{execution_id}/retry/preview")
async def preview_retry(
    execution_id: Id, has: Has, who: Who, body: RetryBody | None = None
) -> RepeatView:
    """What a retry would do, with the same errors. Nothing is started."""
    preview = await has.executions.preview(who, ExecutionId(execution_id), _make_retry_wish(body))
    return RepeatView(**preview)


@routes.post("/api/executions/{execution_id}/rerun/preview")
async def preview_rerun(
    execution_id: Id, has: Has, who: Who, body: RerunBody | None = None
) -> RepeatView:
    """What a rerun would do, with the same errors. Nothing is started."""
    preview = await has.executions.preview(who, ExecutionId(execution_id), _make_rerun_wish(body))
    return RepeatView(**preview)


def _make_retry_wish(body: RetryBody | None) -> RepeatWish:
    body = body or RetryBody()
    return RepeatWish("retry", body.version, None, body.payload)


def _make_rerun_wish(body: RerunBody | None) -> RepeatWish:
    body = body or RerunBody()
    return RepeatWish("rerun", body.version, body.from_step, body.payload)


# -- changing --


@routes.post("/api/executions/{execution_id}/cancel", status_code=202)
async def cancel_execution(execution_id: Id, has: Has, who: Who, key: Key = None) -> AskedView:
    """Cancel an execution: it issues no more commands, and its running commands are stopped. 409 if
    it has ended."""
    return make_asked_view(await has.executions.cancel(who, ExecutionId(execution_id), key))


@routes.post("/api/executions/{execution_id}/pause", status_code=202)
async def pause_execution(execution_id: Id, has: Has, who: Who, key: Key = None) -> AskedView:
    """Pause an execution: its running commands go on, and new commands are held back."""
    return make_asked_view(await has.executions.pause(who, ExecutionId(execution_id), key))


@routes.post("/api/executions/{execution_id}/resume", status_code=202)
async def resume_execution(execution_id: Id, has: Has, who: Who, key: Key = None) -> AskedView:
    """Resume a paused execution."""
    return make_asked_view(await has.executions.resume(who, ExecutionId(execution_id), key))


@routes.post("/api/executions/{execution_id}/release", status_code=202)
async def release_execution(execution_id: Id, has: Has, who: Who, key: Key = None) -> AskedView:
    """Release a quarantined execution, so that it goes on."""
    return make_asked_view(await has.executions.release(who, ExecutionId(execution_id), key))


@routes.post("/api/executions/{execution_id}/signals/{name}", status_code=202)
async def signal_execution(
    execution_id: Id,
    name: Name,
    has: Has,
    who: Who,
    body: SignalBody | None = None,
    key: Key = None,
) -> AskedView:
    """Send a signal of at most 8 KB. Signals of one name are kept in order until a `wait` consumes
    them."""
    payload = None if body is None else body.payload
    outcome = await has.signals.send(
        who, ExecutionId(execution_id), OutsideSignal(name, payload), key
    )
    return make_asked_view(outcome)


# -- reading --


@routes.get("/api/executions")
async def list_executions(
    has: Has,
    who: Who,
    now: Now,
    status: OfStatus = None,
    path: OfPath = None,
    parent: OfParent = None,
    since: Since = None,
    roots: Annotated[
        bool, Query(description="without those that another execution started")
    ] = False,
    before: Before = None,
    limit: Limit = 50,
    min_seq: MinSeq = None,
) -> ExecutionsView:
    """Executions, newest first. `next` is the `before` of the next page."""
    wanted = make_execution_filter(now, status, path, parent, since, roots)
    rows = await has.executions.list_page(who, wanted, _parse_execution_id(before), limit, min_seq)
    views = [ExecutionView(**shapes.dump_execution(row)) for row in rows]
    following = rows[-1].execution_id if len(rows) == limit else None
    return ExecutionsView(executions=views, next=following)


@routes.get("/api/executions/{execution_id}", response_model=DetailedView)
async def get_execution(execution_id: Id, has: Has, who: Who, min_seq: MinSeq = None) -> Response:
    """One execution in detail, as its projection has it."""
    return _make_json_response(await read_detailed(has, who, execution_id, min_seq))


async def read_detailed(
    has: Services, who: Identity, execution_id: str, min_seq: int | None
) -> dict[str, Any]:
    detail = await has.executions.get_detail(who, ExecutionId(execution_id), min_seq)
    return shapes.dump_detail(detail)


@routes.get("/api/executions/{execution_id}/workload")
async def get_workload(execution_id: Id, has: Has, who: Who) -> dict[str, Any]:
    """The payload merged over the playbook's defaults, whole. Keys that name secrets (password,
    api_key …) are left out."""
    return await has.executions.read_workload(who, ExecutionId(execution_id))


@routes.get("/api/executions/{execution_id}/status")
async def get_status(execution_id: Id, has: Has, who: Who, min_seq: MinSeq = None) -> StatusView:
    """The status of the execution, without its details."""
    row = await has.executions.get(who, ExecutionId(execution_id), min_seq)
    return StatusView(
        execution_id=row.execution_id,
        status=row.status,
        ended=row.ended_at is not None,
        recovered=row.recovered,
        error=row.error,
        last_seq=row.last_seq,
    )


@routes.get("/api/executions/{execution_id}/events", response_model=EventsView)
async def list_events(
    execution_id: Id,
    has: Has,
    who: Who,
    after: AfterSeq = 0,
    limit: Annotated[int, Query(ge=1, le=1000, description="how many at most")] = 500,
    types: Annotated[str, Query(max_length=1000, description="names, separated by commas")] = "",
    names: Annotated[
        Literal["today", "older"], Query(description="older: names of the older documents")
    ] = "today",
    min_seq: MinSeq = None,
) -> Response:
    """Events in the order of the log. With `types` a page may hold fewer than `limit`: go on at
    `next`."""
    wanted_types = frozenset(filter(None, types.split(",")))
    older = names == "older"
    shapes.check_event_types(wanted_types, older)

    def is_wanted(recorded: RecordedEvent) -> bool:
        if not wanted_types:
            return True
        if older:
            return not wanted_types.isdisjoint(shapes.list_older_names(recorded.event))
        return recorded.event.type in wanted_types

    page = await has.executions.read_event_page(
        who, ExecutionId(execution_id), after=after, limit=limit, min_seq=min_seq, wanted=is_wanted
    )
    if older:
        events = list(shapes.dump_older_events(page.events, wanted_types))
    else:
        events = [shapes.dump_event(recorded) for recorded in page.events]
    return _make_json_response({"events": events, "next": page.next})


@routes.get("/api/executions/{execution_id}/explain/{step}")
async def explain_step(execution_id: Id, step: Name, has: Has, who: Who) -> ExplanationView:
    """Why the step ran, did not run, or waits."""
    explanation = await has.executions.explain(who, ExecutionId(execution_id), step)
    return ExplanationView(
        step=explanation.step,
        verdict=explanation.verdict,
        because=list(explanation.because),
        runs=explanation.runs,
    )


def _parse_execution_id(text: str | None) -> ExecutionId | None:
    return None if text is None else ExecutionId(text)


def _make_json_response(value: Any) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
