"""Routes for items of loops, data of steps, and payloads."""

from typing import Annotated

from noetl.model.ids import ExecutionId
from noetl.server.executions.routes import Name
from noetl.server.http.depends import Has, Who
from noetl.server.http.parameters import Id, PathParameter, QueryParameter
from noetl.server.http.routing import Routes
from noetl.server.items.scan import PartRange
from noetl.server.items.service import ItemStatus
from noetl.server.items.views import ItemsPageView, ItemTimesView, ReferenceView, StepDataView

routes = Routes("items")

OfRun = Annotated[
    int | None, QueryParameter("which run of the step; default: the last", ge=1, le=1 << 31)
]
MAX_COMMAND_ITEMS = 10_000
First = Annotated[
    int | None,
    QueryParameter("only items of the command with this `first`, see `timeline`", ge=0, le=1 << 53),
]
Count = Annotated[int, QueryParameter("`count` of the command", ge=1, le=MAX_COMMAND_ITEMS)]
RefIdName = Annotated[str, PathParameter("`ref_id` of a reference", pattern=r"^[0-9a-f]{1,32}\Z")]


@routes.get("/api/executions/{execution_id}/steps/{step}/items")
async def list_items(
    execution_id: Id,
    step: Name,
    has: Has,
    who: Who,
    run: OfRun = None,
    status: Annotated[ItemStatus, QueryParameter("how the items ended")] = "failed",
    kind: Annotated[
        int | None,
        QueryParameter("only failures of this kind: its number in `kinds`, from 0", ge=0, le=7),
    ] = None,
    after: Annotated[str | None, QueryParameter("`next` of the page before", max_length=50)] = None,
    limit: Annotated[int, QueryParameter("how many at most", ge=1, le=200)] = 50,
    q: Annotated[
        str | None,
        QueryParameter("only items with this text in their error or result", max_length=200),
    ] = None,
    first: First = None,
    count: Count = MAX_COMMAND_ITEMS,
) -> ItemsPageView:
    """Items of a loop, failed ones unless you ask for others, with the kinds of its failures. Only
    parts of the result that have failed items are opened; a page opens 8 parts or 8 MB at most, so
    it may hold fewer than `limit`: go on at `next`."""
    return await has.items.list_items(
        who,
        ExecutionId(execution_id),
        step,
        run=run,
        status=status,
        kind=kind,
        after=after,
        limit=limit,
        q=q,
        within=None if first is None else PartRange(first, first + count),
    )


@routes.get("/api/executions/{execution_id}/steps/{step}/times")
async def show_item_times(
    execution_id: Id,
    step: Name,
    has: Has,
    who: Who,
    first: Annotated[int, QueryParameter("`first` of a command of the loop", ge=0, le=1 << 53)],
    count: Count = MAX_COMMAND_ITEMS,
    run: OfRun = None,
) -> ItemTimesView:
    """How long the items of a command of a loop took. Their moments are not recorded. It reads 8
    parts of the result or 8 MB at most."""
    within = PartRange(first, first + count)
    return await has.items.show_times(who, ExecutionId(execution_id), step, run, within)


@routes.get("/api/executions/{execution_id}/steps/{step}/data")
async def show_step_data(
    execution_id: Id,
    step: Name,
    has: Has,
    who: Who,
    run: OfRun = None,
    item: Annotated[
        int | None, QueryParameter("of a loop: the index of an item, from 0", ge=0, le=1 << 53)
    ] = None,
) -> StepDataView:
    """What a step was given beside what it made, or one item of a loop and its result."""
    return await has.items.show_data(who, ExecutionId(execution_id), step, run, item)


@routes.get("/api/executions/{execution_id}/references/{ref_id}")
async def preview_reference(
    execution_id: Id,
    ref_id: RefIdName,
    has: Has,
    who: Who,
    start: Annotated[int, QueryParameter("the first row", ge=0, le=1 << 53)] = 0,
    rows: Annotated[int, QueryParameter("how many rows at most", ge=1, le=200)] = 50,
    sort: Annotated[
        str | None,
        QueryParameter(
            "a column, with a minus before it: largest first; up to 10000 rows", max_length=200
        ),
    ] = None,
) -> ReferenceView:
    """Rows of a payload with their columns, or its value: of a result, or of what it was made from.
    Keys that name secrets are left out."""
    return await has.items.preview_reference(
        who, ExecutionId(execution_id), ref_id, rows, start, sort
    )
