"""The structs that answers about items of loops and data of steps have."""

from typing import Annotated, Any

from noetl.model.failure_kinds import FailureKind
from noetl.server.http.structs import View, describe
from noetl.server.results.views import PreviewView


class ItemErrorView(View, frozen=True):
    code: Annotated[str, describe(example="PYTHON_ERROR")]
    message: str
    trace: Annotated[str | None, describe("the end of the traceback, if there is one")]


class ItemView(View, frozen=True):
    index: Annotated[int, describe("in the collection, from 0")]
    item: Annotated[
        Any,
        describe(
            "what the loop ran over, without keys that name secrets; larger than 4 KB: `{cut, text}`"
        ),
    ]
    status: Annotated[str, describe("ok, error or skipped", example="error")]
    ms: int | None
    tries: int | None
    error: ItemErrorView | None
    value: Annotated[Any, describe("its result, shown as `item` is")]
    command_id: str | None
    worker: str | None
    children: Annotated[list[str], describe("executions that it started, in order; 10 at most")]


class ItemKindView(View, frozen=True):
    code: Annotated[str, describe(example="PYTHON_ERROR")]
    shape: Annotated[
        str,
        describe("the message without its numbers and quoted parts", example="cannot score …"),
    ]
    count: Annotated[int, describe("too small if the loop has more kinds than are listed")]
    first: Annotated[int | None, describe("the index of its first item")]
    message: Annotated[str, describe("of the first one")]


class ItemsPageView(View, frozen=True):
    step: str
    run: Annotated[int, describe("which run of the step, from 1")]
    total: Annotated[int | None, describe("null: a cursor that has not come to its end")]
    ok: int
    failed: int
    skipped: int
    items: Annotated[
        list[ItemView],
        describe(
            "in the order of the collection; of a retried loop, items that ran again come first"
        ),
    ]
    kinds: Annotated[list[ItemKindView], describe("of all failures of this run, 8 at most")]
    next: Annotated[
        str | None, describe("the `after` of the next page, also if this page is not full")
    ]
    looked_at: Annotated[int, describe("items that were read for this page")]


class ItemBarView(View, frozen=True):
    """Neighbouring items."""

    first: Annotated[int, describe("the index of the first of them")]
    last: int
    ms: Annotated[int, describe("of the slowest one")]
    slowest: Annotated[int, describe("its index")]
    failed: int


class ItemTimesView(View, frozen=True):
    step: str
    run: int
    items: int
    bars: Annotated[list[ItemBarView], describe("in the order of the items, 120 at most")]
    is_whole: Annotated[
        bool, describe("false: the results are large, and only the first were read")
    ]


class ShownDataView(View, frozen=True):
    """A value, or where it is: one of them, or neither if it is not known."""

    value: Any
    reference: Annotated[
        dict[str, Any] | None, describe("`…/references/{ref_id}` shows more of it")
    ]
    cut: Annotated[bool, describe("there is more than is shown")]


class ShownOutputView(ShownDataView, frozen=True):
    status: Annotated[str | None, describe("null: it has not ended", example="ok")]
    error: dict[str, Any] | None


class StepDataView(View, frozen=True):
    step: str
    run: int
    item: int | None
    input: ShownDataView
    output: ShownOutputView


class ReferenceView(View, frozen=True):
    reference: Annotated[dict[str, Any], describe("ref_id, uri, tier, bytes, rows, format, sha256")]
    preview: Annotated[PreviewView | None, describe("null: its data has expired")]
    start: Annotated[int, describe("the number of the first row that is shown")]
    expired_at: str | None


def make_kind_view(kind: FailureKind) -> ItemKindView:
    return ItemKindView(kind.code, kind.shape, kind.count, kind.first, kind.message)
