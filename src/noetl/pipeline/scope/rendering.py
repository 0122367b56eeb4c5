"""Renders templates over stored data: evaluates, loads what was missing, and evaluates again.

A rendering begins on the event loop, with the small budget of `EVENT_LOOP_LIMITS`. One that needs
more begins anew in a thread, with the limits of a worker. So the worker sends heartbeats, and ends
commands that are cancelled or late, while a template works.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from noetl.model.reference import Reference
from noetl.pipeline.failures import TaskFailed, failure_from_template_error
from noetl.pipeline.scope.lazy_results import LazyResult
from noetl.pipeline.scope.results import HeadOfRows, ResultReader, is_rowset
from noetl.template.errors import LimitError, NeedsData, TemplateError
from noetl.template.limits import EVENT_LOOP_LIMITS
from noetl.template.model import MarkedValue, Scope
from noetl.template.rendering import Renderer

Evaluation: TypeAlias = Callable[[Renderer, Any, Scope], Any]  # a method of Renderer

MAX_LOADS = 10_000  # per template; each load brings data that the one before did not have


@cache
def _get_render_thread() -> ThreadPoolExecutor:
    """The one thread of this process in which large templates are rendered.

    With one, an event loop waits for one piece of work at most before it gets its next turn.
    """
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix="render")


class StoredRows(Struct, frozen=True):
    """Rows in the store, to be read in batches."""

    reference: Reference
    count: int
    payloads: ResultReader

    async def batches(self, size: int) -> AsyncIterator[list[Any]]:
        if is_rowset(self.reference):
            async for batch in self._read_rowset_batches(size):
                yield batch
            return
        for start in range(0, self.count, size):
            stop = min(start + size, self.count)
            yield await self.payloads.read_item_range(self.reference, start, stop)

    async def reader(self) -> Any:
        """A reader of a row set, which the caller closes. None if the rows are stored as JSON."""
        if not is_rowset(self.reference):
            return None
        return await self.payloads.open_rowset(self.reference)

    async def _read_rowset_batches(self, size: int) -> AsyncIterator[list[Any]]:
        """Read the file from its beginning to its end: reading by ranges would read its parts many
        times."""
        from noetl.results.formats.rowsets import (
            list_rows,  # loads Arrow, which JSON rows do not need
        )

        reader = await self.payloads.open_rowset(self.reference)
        try:
            batches = reader.batches()
            while (batch := await asyncio.to_thread(next, batches, None)) is not None:
                for start in range(0, batch.num_rows, size):
                    yield await asyncio.to_thread(list_rows, batch.slice(start, size))
        finally:
            await asyncio.to_thread(reader.close)


@dataclass(slots=True)
class TaskRendering:
    """Renders templates in one scope.

    The scope is made when the first template needs it; `where` names it in errors.
    """

    names: Callable[[], dict[str, Any]]
    payloads: ResultReader
    renderer: Renderer
    where: str
    _scope: dict[str, Any] | None = None

    @property
    def scope(self) -> dict[str, Any]:
        if self._scope is None:
            self._scope = self.names()
        return self._scope

    async def value(self, template: Any) -> Any:
        return await self._evaluate_or_fail(Renderer.render_value, template)

    async def render_lazily(self, template: Any) -> Any:
        """Render the template, but leave a stored result a LazyResult."""
        return await self._evaluate_or_fail(Renderer.evaluate, template)

    async def source(self, template: Any) -> Any:
        """Render the template; for a stored row set, return a reader of it."""
        result = await self._find_stored_result(template)
        if result is not None:
            reference = result.envelope.reference
            if (
                reference is not None
                and is_rowset(reference)
                and not self.payloads.is_in_memory(reference)
            ):
                return await self.payloads.open_rowset(reference)
        return await self.value(template)

    async def _find_stored_result(self, template: Any) -> LazyResult | None:
        """The result that the template is, if it is a reference to one."""
        if not isinstance(template, str):
            return None
        value = await self.render_lazily(template)
        return value if isinstance(value, LazyResult) else None

    async def fetched(self, uri: str) -> Any:
        return await self.payloads.fetch_uri(uri)

    async def rows(self, template: Any) -> Any:
        """Render the template, but leave stored rows, also those of a map, in the store as StoredRows."""
        result = await self._find_stored_result(template)
        if result is None or result.envelope.reference is None:
            return await self.value(template)
        reference = result.envelope.reference
        if result.unread_table is not None:
            await self.payloads.load(HeadOfRows(reference))
            rows = self._make_stored_rows(result.unread_table)
            return {**self.payloads.get_head(reference), str(reference.rows_at): rows}
        if result.known_row_count is None:
            return await self.value(template)
        return self._make_stored_rows(reference, result.known_row_count)

    def _make_stored_rows(self, reference: Reference, count: int | None = None) -> StoredRows:
        alone = replace(reference, rows_at=None)
        return StoredRows(alone, reference.rows or count or 0, self.payloads)

    async def evaluate_guard(self, template: Any) -> bool:
        return bool(await self._evaluate_or_fail(Renderer.evaluate_guard, template))

    async def marked(self, template: str) -> tuple[str, list[MarkedValue]]:
        text, marks = await self._evaluate_or_fail(Renderer.render_marked, template)
        return text, marks

    async def _evaluate_or_fail(self, evaluate: Evaluation, template: Any) -> Any:
        try:
            return await self.evaluate_with_loads(evaluate, template)
        except TemplateError as error:
            raise TaskFailed(failure_from_template_error(error, self.where)) from error

    async def evaluate_with_loads(self, evaluate: Evaluation, template: Any) -> Any:
        """Call `evaluate`, a method of the renderer, until all data that it needs is loaded."""
        self.payloads.trim()
        quick_renderer = replace(self.renderer, limits=EVENT_LOOP_LIMITS)
        is_small = True
        for _ in range(MAX_LOADS):
            try:
                if is_small:
                    return evaluate(quick_renderer, template, self.scope)
                return await self._evaluate_in_thread(evaluate, template)
            except NeedsData as need:
                await self.payloads.load(need.request)
            except LimitError:
                if not is_small:
                    raise
                is_small = False
        raise LimitError(f"the template needs more than {MAX_LOADS} parts of stored data")

    async def _evaluate_in_thread(self, evaluate: Evaluation, template: Any) -> Any:
        """Evaluate without blocking the event loop.

        A cancelled caller goes on at once; the thread ends when the budget is used up at the
        latest. The maps of the scope are copied, because the command may change them meanwhile.
        """
        scope = {
            name: dict(value) if type(value) is dict else value
            for name, value in self.scope.items()
        }
        loop = asyncio.get_running_loop()
        with self.payloads.keep_all():
            return await loop.run_in_executor(
                _get_render_thread(), evaluate, self.renderer, template, scope
            )
