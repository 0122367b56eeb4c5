"""Routes for executions: start, list, read, change."""

from re import fullmatch
from typing import Annotated, Any, Literal

from noetl.model.identity import Identity
from noetl.model.ids import ExecutionId
from noetl.model.messages import MAX_CHOSEN_ITEMS, RetryChoice
from noetl.server.dispatch.requests import RepeatWish
from noetl.server.executions.bulk import BulkChange
from noetl.server.executions.filters import make_execution_filter
from noetl.server.executions.views import (
    EXAMPLE_ID,
    AskedView,
    BulkView,
    CountsView,
    DetailedView,
    ExecutionsView,
    RepeatView,
    StartedView,
    StatusView,
)
from noetl.server.http.depends import Has, Now, Who
from noetl.server.http.parameters import (
    EXECUTION_ID_PATTERN,
    Id,
    Key,
    Limit,
    MinSeq,
    OfParent,
    OfPath,
    OfStatuses,
    OnlyRoots,
    OnlyWaiting,
    PathParameter,
    QueryParameter,
    SearchText,
    Since,
    Until,
    WaitForEnd,
)
from noetl.server.http.routing import Routes
from noetl.server.http.structs import LongText, RequestBody, describe
from noetl.server.services import Services
from noetl.server.signals.service import OutsideSignal

routes = Routes("executions")

MAX_CHOSEN_STEPS = 100

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


class RepeatBody(RequestBody, frozen=True):
    version: Annotated[
        int | Literal["latest"] | None, describe("null: the version it had", example=3)
    ] = None
    payload: Annotated[dict[str, Any], describe("merged over its workload", example={"n": 3})] = {}


ItemIndex = Annotated[int, describe(ge=0, le=1 << 53)]
ChosenItems = Annotated[list[ItemIndex], describe(min_length=1, max_length=MAX_CHOSEN_ITEMS)]


class RetryBody(RepeatBody, frozen=True):
    steps: Annotated[
        list[LongText],
        describe(
            "of a completed execution: loops of which the failed items run again; empty: all",
            max_length=MAX_CHOSEN_STEPS,
            example=["score"],
        ),
    ] = []
    items: Annotated[
        dict[str, ChosenItems],
        describe(
            "by loop: indexes of failed items; only they run again, and the others stay failed",
            max_length=MAX_CHOSEN_STEPS,
            example={"score": [3, 17]},
        ),
    ] = {}

    @property
    def only(self) -> RetryChoice | None:
        if not self.steps and not self.items:
            return None
        chosen = {step: tuple(indexes) for step, indexes in self.items.items()}
        return RetryChoice(tuple(self.steps), chosen)


class RerunBody(RepeatBody, frozen=True):
    from_step: Annotated[
        LongText | None,
        describe("this step and what follows from it run; null: from the beginning"),
    ] = None


class BulkBody(RequestBody, frozen=True):
    do: Annotated[BulkChange, describe(example="retry")]
    ids: Annotated[
        list[LongText],
        describe("of executions", min_length=1, max_length=200, example=[EXAMPLE_ID]),
    ]


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
    again, and the steps after the loop. `items` limits it to some of them: the loop then counts the
    others as failed, so its failure policy decides whether it completes."""
    wish = await _make_retry_wish(has, who, ExecutionId(execution_id), body)
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


@routes.get("/api/executions/{execution_id}/retry")
async def show_retry(execution_id: Id, has: Has, who: Who) -> RepeatView:
    """What a retry without a body would do, with the same errors. Nothing is started."""
    return await has.executions.preview(who, ExecutionId(execution_id), RepeatWish("retry"))


@routes.post("/api/executions/{execution_id}/retry/preview")
async def preview_retry(
    execution_id: Id, has: Has, who: Who, body: RetryBody | None = None
) -> RepeatView:
    """What a retry would do, with the same errors. Nothing is started."""
    wish = await _make_retry_wish(has, who, ExecutionId(execution_id), body)
    return await has.executions.preview(who, ExecutionId(execution_id), wish)


@routes.post("/api/executions/{execution_id}/rerun/preview")
async def preview_rerun(
    execution_id: Id, has: Has, who: Who, body: RerunBody | None = None
) -> RepeatView:
    """What a rerun would do, with the same errors. Nothing is started."""
    return await has.executions.preview(who, ExecutionId(execution_id), _make_rerun_wish(body))


async def _make_retry_wish(
    has: Services, who: Identity, execution_id: ExecutionId, body: RetryBody | None
) -> RepeatWish:
    """The wish of a request. Raises `Conflict` if an item that it names has not failed."""
    body = body or RetryBody()
    wish = RepeatWish("retry", body.version, None, body.payload, body.only)
    if wish.only is not None:
        await has.items.check_chosen_items(who, execution_id, wish.only)
    return wish


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


@routes.post("/api/executions/bulk")
async def change_executions(body: BulkBody, has: Has, who: Who, key: Key = None) -> BulkView:
    """Cancel, retry, pause or resume up to 200 executions. Each has an outcome of its own: one that
    cannot be changed does not stop the others. A repeat with the same Idempotency-Key starts
    nothing again."""
    return await has.bulk.change(who, body.do, body.ids, key)


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
    status: OfStatuses = None,
    path: OfPath = None,
    parent: OfParent = None,
    since: Since = None,
    until: Until = None,
    q: SearchText = None,
    waiting: OnlyWaiting = False,
    roots: OnlyRoots = False,
    before: Before = None,
    limit: Limit = 50,
    min_seq: MinSeq = None,
) -> ExecutionsView:
    """Executions, newest first. `next` is the `before` of the next page. A page looks at a bounded
    number of executions, so it may hold fewer than `limit`: go on at `next`."""
    wanted = make_execution_filter(now, status, path, parent, since, roots, until, q, waiting)
    older_than = None if before is None else ExecutionId(before)
    return await has.executions.list_page(who, wanted, older_than, limit, min_seq)


@routes.get("/api/executions/counts")
async def count_executions(
    has: Has,
    who: Who,
    now: Now,
    path: OfPath = None,
    since: Since = None,
    until: Until = None,
    roots: OnlyRoots = False,
    buckets: Annotated[int, QueryParameter("of the histogram", ge=1, le=500)] = 60,
) -> CountsView:
    """How many executions there are, by status, and when they were made. At most 10000 of a status
    are counted, and the histogram has the newest 50000."""
    wanted = make_execution_filter(now, None, path, None, since, roots, until)
    return await has.counts.count(who, wanted, now, buckets)


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
