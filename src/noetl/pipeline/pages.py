"""The built-in paginator: call again while `when` holds. Every page is stored and journaled before the next call is made, so a
new attempt goes on at the next page; what was collected is read back from the stored pages."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from noetl.model.commands import LONGEST_HELD_DELAY, Page
from noetl.model.errors import Failure
from noetl.model.ids import Micros
from noetl.pipeline import policy
from noetl.pipeline.calls import Done, PreparedCall, TaskTry
from noetl.pipeline.failures import Failing
from noetl.pipeline.rendering import TaskRendering
from noetl.playbook.expressions import Undefined, dotted
from noetl.playbook.model import Collect, Paginate
from noetl.playbook.workload import over
from noetl.tools.port import Failed, Outcome, Success, Suspend

MOST_CALLS = 1_000  # when nobody says


@dataclass(frozen=True, slots=True)
class Later:
    """The next page is due only after a delay that would hold a worker too long."""

    delay: Micros


@dataclass(slots=True)
class Book:
    """What the pages of one call have given so far."""

    number: int = 0  # pages stored
    cursor: dict[str, Any] = field(default_factory=dict)
    collected: Any = None


@dataclass(frozen=True, slots=True)
class Paging:
    """How one task pages; the functions reach into its pipeline."""

    turn: TaskTry
    paginate: Paginate
    prepared: PreparedCall
    call: Callable[[PreparedCall], Awaitable[Outcome]]
    key: Callable[[int], str]
    rendering: Callable[[Success], TaskRendering]  # the scope of a page that has just come
    sink: Callable[[int, Success], Awaitable[Failure | None]]
    journal: Callable[[int, Success, dict[str, Any]], Awaitable[None]] | None


async def turn_pages(paging: Paging, book: Book) -> Done | Failed | Suspend | Later:
    paginate = paging.paginate
    while True:
        number = book.number + 1
        outcome = await paging.call(paging.prepared.page(number, book.cursor, paging.key(number)))
        if not isinstance(outcome, Success):
            return outcome
        rendering = paging.rendering(outcome)
        wanted = paginate.max_attempts if paginate.max_attempts is not None else MOST_CALLS
        last = number >= await policy.number(wanted, "max_attempts", rendering)
        more = (not last or _must_end(paginate)) and await rendering.guard(paginate.when)
        if (failure := await paging.sink(number, outcome)) is not None:
            return Failed(failure)
        if paginate.collect is not None:
            book.collected = collect(paginate.collect, book.collected, outcome.value)
        if more and last:
            return Failed(_endless(paginate, number))
        if not more:
            return Done(_whole(paginate, outcome.value, book.collected), outcome.facts)
        following: dict[str, Any] = await rendering.value(paginate.next_call)
        book.number, book.cursor = number, over(book.cursor, following)
        delay = await policy.delay(paginate, number, rendering)
        if paging.journal is not None:
            await paging.journal(number, outcome, book.cursor)
            if delay > LONGEST_HELD_DELAY:
                return Later(delay)
        if delay:
            await asyncio.sleep(delay / 1_000_000)


def _must_end(paginate: Paginate) -> bool:
    """Whoever says how many pages there may be gets these; what nobody has bounded, or waits for something, is not done then."""
    return paginate.max_attempts is None or not paginate.next_call


def _endless(paginate: Paginate, number: int) -> Failure:
    what = "what it waits for did not come" if not paginate.next_call else "there are more pages"
    hint = "a larger `max_attempts`, or a `when` that ends it"
    return Failure(
        code="PAGES_EXCEEDED",
        kind="config",
        message=f"{what} after {number} calls; it needs {hint}",
    )


def reopened(paginate: Paginate, page: Page, values: list[Any]) -> Book:
    """The book as the journal left it; `values` are all stored pages, in order."""
    collected: Any = None
    for value in values if paginate.collect is not None else ():
        collected = collect(paginate.collect, collected, value)
    return Book(page.number, page.cursor, collected)


def collect(how: Collect | None, collected: Any, value: Any) -> Any:
    assert how is not None
    part = _part(how, value)
    match how.strategy:
        case "replace":
            return part
        case "merge":
            if not isinstance(part, dict):
                raise Failing(_mismatch("merge", part))
            return {**(collected or {}), **part}
        case "append" | "extend":
            return [*(collected or []), *(part if isinstance(part, list) else [part])]


def sink_data(paginate: Paginate, value: Any) -> tuple[Any, dict[str, Any]]:
    """The template of what a page's sink stores, and the names it needs. Without `data` it is what `collect.path` names."""
    how, data = paginate.collect, paginate.sink.data if paginate.sink is not None else None
    if data is not None:
        return data, {}
    if how is None or how.path is None:
        return "{{ response.data | default(response) }}", {}
    return "{{ _page_records }}", {"_page_records": _part(how, value)}


def _part(how: Collect, value: Any) -> Any:
    if how.path is None:
        return value["data"] if isinstance(value, dict) and "data" in value else value
    found = dotted(value, how.path)
    if isinstance(found, Undefined) and isinstance(value, dict):
        found = dotted(
            value.get("data"), how.path
        )  # as `response.x` finds what is in an answer's data
    if isinstance(found, Undefined):
        message = f"collect.path {how.path!r} is not in the answer"
        raise Failing(Failure(code="COLLECT_MISSING", kind="config", message=message))
    return found


def _mismatch(strategy: str, part: Any) -> Failure:
    message = f"collect {strategy} takes maps, the answer has a {type(part).__name__}"
    return Failure(code="COLLECT_MISMATCH", kind="config", message=message)


def _whole(paginate: Paginate, value: Any, collected: Any) -> Any:
    """The last answer with `data` = what was collected; a poll's last answer as it is."""
    if paginate.collect is None:
        return value
    return {**value, "data": collected} if isinstance(value, dict) else {"data": collected}
