"""The built-in paginator: calls a tool again while `when` holds.

Every page is stored and journaled before the next call, so a new attempt continues at the next
page. It reads what was collected back from the stored pages.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from msgspec import Struct

from noetl.model.commands import MAX_HELD_DELAY_MICROS, Page
from noetl.model.errors import Failure
from noetl.model.ids import Micros
from noetl.pipeline.failures import TaskFailed
from noetl.pipeline.scope.rendering import TaskRendering
from noetl.pipeline.task import policy
from noetl.pipeline.task.calls import PreparedCall, SuccessfulTry
from noetl.playbook.merging import merge_deep
from noetl.playbook.model import Collect, Paginate
from noetl.template.members import follow_attribute
from noetl.template.values import Undefined
from noetl.tools.port import Failed, Outcome, Success, Suspend

DEFAULT_MAX_CALLS = 1_000  # pages, without `max_attempts`


class LaterPage(Struct, frozen=True):
    """The next page is due after a delay that is too long to hold a worker."""

    delay: Micros


@dataclass(slots=True)
class CollectedPages:
    """What the pages of one call have given so far."""

    number: int = 0  # pages stored
    cursor: dict[str, Any] = field(default_factory=dict)
    collected: Any = None


class Paging(Struct, frozen=True):
    """How one task pages. The functions belong to its pipeline."""

    paginate: Paginate
    prepared: PreparedCall
    call: Callable[[PreparedCall], Awaitable[Outcome]]
    key: Callable[[int], str]
    rendering: Callable[[Success], TaskRendering]  # makes the scope of a new page
    sink: Callable[[int, Success], Awaitable[Failure | None]]
    journal: Callable[[int, Success, dict[str, Any]], Awaitable[None]] | None


async def turn_pages(
    paging: Paging, book: CollectedPages
) -> SuccessfulTry | Failed | Suspend | LaterPage:
    """Call page after page until `when` does not hold, or something else ends it."""
    paginate = paging.paginate
    max_attempts = paginate.max_attempts
    if max_attempts is None:
        max_attempts = DEFAULT_MAX_CALLS
    while True:
        number = book.number + 1
        call = paging.prepared.for_page(number, book.cursor, paging.key(number))
        outcome = await paging.call(call)
        if not isinstance(outcome, Success):
            return outcome
        rendering = paging.rendering(outcome)
        last = number >= await policy.render_number(max_attempts, "max_attempts", rendering)
        more = False
        if not last or _is_limit_a_failure(paginate):
            more = await rendering.evaluate_guard(paginate.when)
        failure = await paging.sink(number, outcome)
        if failure is not None:
            return Failed(failure)
        if paginate.collect is not None:
            book.collected = collect_page(paginate.collect, book.collected, outcome.value)
        if more and last:
            return Failed(_too_many_calls(paginate, number))
        if not more:
            return SuccessfulTry(
                _call_value(paginate, outcome.value, book.collected), outcome.facts
            )
        following: dict[str, Any] = await rendering.value(paginate.next_call)
        book.number, book.cursor = number, merge_deep(book.cursor, following)
        delay = await policy.render_delay(paginate, number, rendering)
        if paging.journal is not None:
            await paging.journal(number, outcome, book.cursor)
            if delay > MAX_HELD_DELAY_MICROS:
                return LaterPage(delay)
        if delay:
            await asyncio.sleep(delay / 1_000_000)


def _is_limit_a_failure(paginate: Paginate) -> bool:
    """Whether reaching the last allowed call while `when` still holds is a failure.

    It is not if the author limits the number of pages. It is if nobody set a limit, or if the calls
    wait for something.
    """
    return paginate.max_attempts is None or not paginate.next_call


def _too_many_calls(paginate: Paginate, number: int) -> Failure:
    what = "there are more pages"
    if not paginate.next_call:
        what = "what it waits for did not come"
    hint = "a larger `max_attempts`, or a `when` that ends it"
    message = f"{what} after {number} calls; it needs {hint}"
    return Failure(code="PAGES_EXCEEDED", kind="config", message=message)


def reopen_book(paginate: Paginate, page: Page, values: list[Any]) -> CollectedPages:
    """The book as the journal left it. `values` are all stored pages, in order."""
    collected: Any = None
    if paginate.collect is not None:
        for value in values:
            collected = collect_page(paginate.collect, collected, value)
    return CollectedPages(page.number, page.cursor, collected)


def collect_page(how: Collect | None, collected: Any, value: Any) -> Any:
    """Add a page to what was collected before."""
    assert how is not None
    part = _collected_part(how, value)
    match how.strategy:
        case "replace":
            return part
        case "merge":
            if not isinstance(part, dict):
                raise TaskFailed(_collect_mismatch("merge", part))
            return {**(collected or {}), **part}
        case "append" | "extend":
            rows = part if isinstance(part, list) else [part]
            return [*(collected or []), *rows]


def make_sink_data(paginate: Paginate, value: Any) -> tuple[Any, dict[str, Any]]:
    """The template of what the sink of a page stores, and the names it needs.

    Without `data`, the sink stores what `collect.path` names.
    """
    if paginate.sink is not None and paginate.sink.data is not None:
        return paginate.sink.data, {}
    how = paginate.collect
    if how is None or how.path is None:
        return "{{ response.data | default(response) }}", {}
    return "{{ _page_records }}", {"_page_records": _collected_part(how, value)}


def _collected_part(how: Collect, value: Any) -> Any:
    """The part of a page that is collected."""
    if how.path is None:
        if isinstance(value, dict) and "data" in value:
            return value["data"]
        return value
    part = follow_attribute(value, how.path)
    if isinstance(part, Undefined) and isinstance(value, dict):
        # `response.x` also finds `x` in the answer's data
        part = follow_attribute(value.get("data"), how.path)
    if isinstance(part, Undefined):
        message = f"collect.path {how.path!r} is not in the answer"
        raise TaskFailed(Failure(code="COLLECT_MISSING", kind="config", message=message))
    return part


def _collect_mismatch(strategy: str, part: Any) -> Failure:
    message = f"collect {strategy} takes maps, the answer has a {type(part).__name__}"
    return Failure(code="COLLECT_MISMATCH", kind="config", message=message)


def _call_value(paginate: Paginate, value: Any, collected: Any) -> Any:
    """The value of the call: the last answer, with all collected pages as its `data`."""
    if paginate.collect is None:
        return value
    if isinstance(value, dict):
        return {**value, "data": collected}
    return {"data": collected}
