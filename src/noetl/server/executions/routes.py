"""Routes for executions: start, list, read, change."""

from re import fullmatch
from typing import Annotated, Any, Literal

from noetl.model.ids import ExecutionId
from noetl.server.dispatch.requests import RepeatWish
from noetl.server.executions.service import make_execution_filter
from noetl.server.executions.views import (
    AskedView,
    DetailedView,
    EventsView,
    ExecutionsView,
    ExplanationView,
    RepeatView,
    StartedView,
    StatusView,
)
from noetl.server.http.depends import Has, Now, Who
from noetl.server.http.parameters import (
    EXECUTION_ID_PATTERN,
    AfterSeq,
    Id,
    Key,
    Limit,
    MinSeq,
    OfParent,
    OfPath,
    OfStatus,
    PathParameter,
    QueryParameter,
    Since,
    WaitForEnd,
)
from noetl.server.http.routing import Routes
from noetl.server.http.structs import LongText, RequestBody, describe
from noetl.server.signals.service import OutsideSignal

routes = Routes("executions")

Before = Annotated[
    str | None,
    QueryParameter(
        "older than this execution: `next` of the page before", pattern=EXECUTION_ID_PATTERN
    ),
]
Name = Annotated[str, PathParameter(max_length=200, pattern=r"^[^\x00-\x1f\x7f]+\Z")]


class Execute(RequestBody, frozen=True):
    """Names a playbook: either by `path` in the catalog, with a `version`, or by the hash of its
    text as `playbook`. In an older spelling `playbook` is a path."""

    path: Annotated[LongText | None, describe(example="examples/hello")] = None
    playbook: LongText | None = None
    version: Annotated[int | Literal["latest"] | None, describe(example=3)] = None
    payload: Annotated[
        dict[str, Any], describe("merged over the playbook's workload", example={"n": 3})
    ] = {}

    def __post_init__(self) -> None:
        if (self.path is None) == (self.playbook is None):
            raise ValueError("give either path or playbook")


Wait = Annotated[bool, QueryParameter("answer when it has begun, or after a second")]


class RetryBody(RequestBody, frozen=True):
    version: Annotated[
        int | Literal["latest"] | None, describe("null: the version it had", example=3)
    ] = None
    payload: Annotated[dict[str, Any], describe("merged over its workload", example={"n": 3})] = {}


class RerunBody(RetryBody, frozen=True):
    from_step: Annotated[
        LongText | None,
        describe("this step and what follows from it run; null: from the beginning"),
    ] = None


class SignalBody(RequestBody, frozen=True):
    payload: Any = None


# -- starting --


@routes.post("/api/executions/execute", status=202)
@routes.post("/api/execute", status=202, name="execute")
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
    return await has.executions.start(
        who,
        path=path,
        content=content,
        version=body.version,
        payload=body.payload,
        key=key,
        wait=wait,
    )


@routes.post("/api/executions/{execution_id}/retry", status=202)
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
    return await has.executions.repeat(who, ExecutionId(execution_id), wish, key, wait=wait)


@routes.post("/api/executions/{execution_id}/rerun", status=202)
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
    return await has.executions.repeat(who, ExecutionId(execution_id), wish, key, wait=wait)


@routes.post("/api/executions/{execution_id}/retry/preview")
async def preview_retry(
    execution_id: Id, has: Has, who: Who, body: RetryBody | None = None
) -> RepeatView:
    """What a retry would do, with the same errors. Nothing is started."""
    return await has.executions.preview(who, ExecutionId(execution_id), _make_retry_wish(body))


@routes.post("/api/executions/{execution_id}/rerun/preview")
async def preview_rerun(
    execution_id: Id, has: Has, who: Who, body: RerunBody | None = None
) -> RepeatView:
    """What a rerun would do, with the same errors. Nothing is started."""
    return await has.executions.preview(who, ExecutionId(execution_id), _make_rerun_wish(body))


def _make_retry_wish(body: RetryBody | None) -> RepeatWish:
    body = body or RetryBody()
    return RepeatWish("retry", body.version, None, body.payload)


def _make_rerun_wish(body: RerunBody | None) -> RepeatWish:
    body = body or RerunBody()
    return RepeatWish("rerun", body.version, body.from_step, body.payload)


# -- changing --


@routes.post("/api/executions/{execution_id}/cancel", status=202)
async def cancel_execution(
    execution_id: Id,
    has: Has,
    who: Who,
    key: Key = None,
) -> AskedView:
    """Cancel an execution: it issues no more commands, and its running commands are stopped. 409 if
    it has ended."""
    return await has.executions.cancel(who, ExecutionId(execution_id), key)


@routes.post("/api/executions/{execution_id}/pause", status=202)
async def pause_execution(
    execution_id: Id,
    has: Has,
    who: Who,
    key: Key = None,
) -> AskedView:
    """Pause an execution: its running commands go on, and new commands are held back."""
    return await has.executions.pause(who, ExecutionId(execution_id), key)


@routes.post("/api/executions/{execution_id}/resume", status=202)
async def resume_execution(
    execution_id: Id,
    has: Has,
    who: Who,
    key: Key = None,
) -> AskedView:
    """Resume a paused execution."""
    return await has.executions.resume(who, ExecutionId(execution_id), key)


@routes.post("/api/executions/{execution_id}/release", status=202)
async def release_execution(
    execution_id: Id,
    has: Has,
    who: Who,
    key: Key = None,
) -> AskedView:
    """Release a quarantined execution, so that it goes on."""
    return await has.executions.release(who, ExecutionId(execution_id), key)


@routes.post("/api/executions/{execution_id}/signals/{name}", status=202)
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
    signal = OutsideSignal(name, payload)
    return await has.signals.send(who, ExecutionId(execution_id), signal, key)


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
    roots: Annotated[bool, QueryParameter("without those that another execution started")] = False,
    before: Before = None,
    limit: Limit = 50,
    min_seq: MinSeq = None,
) -> ExecutionsView:
    """Executions, newest first. `next` is the `before` of the next page."""
    wanted = make_execution_filter(now, status, path, parent, since, roots)
    older_than = None if before is None else ExecutionId(before)
    return await has.executions.list_page(who, wanted, older_than, limit, min_seq)


@routes.get("/api/executions/{execution_id}")
async def get_execution(
    execution_id: Id, has: Has, who: Who, min_seq: MinSeq = None
) -> DetailedView:
    """One execution in detail, as its projection has it."""
    return await has.executions.get_detail(who, ExecutionId(execution_id), min_seq)


@routes.get("/api/executions/{execution_id}/workload")
async def get_workload(
    execution_id: Id,
    has: Has,
    who: Who,
) -> dict[str, Any]:
    """The payload merged over the playbook's defaults, whole. Keys that name secrets (password,
    api_key …) are left out."""
    return await has.executions.read_workload(who, ExecutionId(execution_id))


@routes.get("/api/executions/{execution_id}/status")
async def get_status(
    execution_id: Id,
    has: Has,
    who: Who,
    min_seq: MinSeq = None,
    wait: WaitForEnd = 0,
) -> StatusView:
    """The status of the execution, without its details. With `wait` the answer comes at the end of
    the execution, at its quarantine, or after so many seconds."""
    return await has.executions.get_status(who, ExecutionId(execution_id), min_seq, wait)


@routes.get("/api/executions/{execution_id}/events")
async def list_events(
    execution_id: Id,
    has: Has,
    who: Who,
    after: AfterSeq = 0,
    limit: Annotated[int, QueryParameter("how many at most", ge=1, le=1000)] = 500,
    types: Annotated[str, QueryParameter("names, separated by commas", max_length=1000)] = "",
    names: Annotated[
        Literal["today", "older"], QueryParameter("older: names of the older documents")
    ] = "today",
    min_seq: MinSeq = None,
) -> EventsView:
    """Events in the order of the log. With `types` a page may hold fewer than `limit`: go on at
    `next`."""
    return await has.executions.list_events(
        who,
        ExecutionId(execution_id),
        after=after,
        limit=limit,
        types=frozenset(filter(None, types.split(","))),
        older=names == "older",
        min_seq=min_seq,
    )


@routes.get("/api/executions/{execution_id}/explain/{step}")
async def explain_step(execution_id: Id, step: Name, has: Has, who: Who) -> ExplanationView:
    """Why the step ran, did not run, or waits."""
    return await has.executions.explain(who, ExecutionId(execution_id), step)
