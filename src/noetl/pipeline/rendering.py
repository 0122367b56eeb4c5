"""Renders templates over stored data: evaluates, loads what was missing, and evaluates again."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from noetl.model.reference import Reference
from noetl.pipeline.data import HeadOf, LazyResult, ResultReader, is_rowset
from noetl.pipeline.failures import Failing, template_failure
from noetl.playbook import templates
from noetl.playbook.expressions import (
    WORKER_LIMITS,
    Functions,
    LimitError,
    NeedsData,
    TemplateError,
)
from noetl.playbook.templates import Marked

MOST_LOADS = 10_000  # per template; each load brings data that the one before did not have


@dataclass(frozen=True, slots=True)
class StoredRows:
    """Rows in the store, to be read in batches."""

    reference: Reference
    count: int
    payloads: ResultReader

    async def batches(self, size: int) -> AsyncIterator[list[Any]]:
        if is_rowset(self.reference):
            async for batch in self._of_rowset(size):
                yield batch
            return
        for start in range(0, self.count, size):
            stop = min(start + size, self.count)
            yield await self.payloads.range(self.reference, start, stop)

    async def reader(self) -> Any:
        """A reader of a row set, which the caller closes. None if the rows are stored as JSON."""
        if not is_rowset(self.reference):
            return None
        return await self.payloads.open(self.reference)

    async def _of_rowset(self, size: int) -> AsyncIterator[list[Any]]:
        """Read the file from its beginning to its end: reading by ranges would read its parts many
        times."""
        from noetl.results.rowsets import as_rows  # loads Arrow, which JSON rows do not need

        reader = await self.payloads.open(self.reference)
        try:
            batches = reader.batches()
            while (batch := await asyncio.to_thread(next, batches, None)) is not None:
                for start in range(0, batch.num_rows, size):
                    yield await asyncio.to_thread(as_rows, batch.slice(start, size))
        finally:
            await asyncio.to_thread(reader.close)


@dataclass(slots=True)
class TaskRendering:
    """Renders templates in one scope.

    The scope is made when the first template needs it; `where` names it in errors.
    """

    names: Callable[[], dict[str, Any]]
    payloads: ResultReader
    functions: Functions
    where: str
    _scope: dict[str, Any] | None = None

    @property
    def scope(self) -> dict[str, Any]:
        if self._scope is None:
            self._scope = self.names()
        return self._scope

    async def value(self, template: Any) -> Any:
        return await self._evaluate(templates.render_value, template)

    async def lazy(self, template: Any) -> Any:
        """Render the template, but leave a stored result a LazyResult."""
        return await self._evaluate(templates.evaluate, template)

    async def source(self, template: Any) -> Any:
        """Render the template; for a stored row set, return a reader of it."""
        result = await self._stored_result(template)
        if result is not None:
            reference = result.envelope.reference
            if reference is not None and is_rowset(reference) and not self.payloads.has(reference):
                return await self.payloads.open(reference)
        return await self.value(template)

    async def _stored_result(self, template: Any) -> LazyResult | None:
        """The result that the template is, if it is a reference to one."""
        if not isinstance(template, str):
            return None
        value = await self.lazy(template)
        return value if isinstance(value, LazyResult) else None

    async def fetched(self, uri: str) -> Any:
        return await self.payloads.fetch(uri)

    async def rows(self, template: Any) -> Any:
        """Render the template, but leave stored rows, also those of a map, in the store as StoredRows."""
        result = await self._stored_result(template)
        if result is None or result.envelope.reference is None:
            return await self.value(template)
        reference = result.envelope.reference
        if result.table is not None:
            await self.payloads.load(HeadOf(reference))
            rows = self._rows(result.table)
            return {**self.payloads.head(reference), str(reference.rows_at): rows}
        if result.rows_known is None:
            return await self.value(template)
        return self._rows(reference, result.rows_known)

    def _rows(self, reference: Reference, count: int | None = None) -> StoredRows:
        alone = replace(reference, rows_at=None)
        return StoredRows(alone, reference.rows or count or 0, self.payloads)

    async def guard(self, template: Any) -> bool:
        return bool(await self._evaluate(templates.guard, template))

    async def marked(self, template: str) -> tuple[str, list[Marked]]:
        text, marks = await self._evaluate(templates.render_marked, template)
        return text, marks

    async def _evaluate(self, function: Callable[..., Any], template: Any) -> Any:
        try:
            return await self.attempt(function, template)
        except TemplateError as error:
            raise Failing(template_failure(error, self.where)) from error

    async def attempt(self, function: Callable[..., Any], template: Any) -> Any:
        """Call `function` with the template until all data that it needs is loaded."""
        self.payloads.trim()
        for _ in range(MOST_LOADS):
            try:
                return function(
                    template, self.scope, limits=WORKER_LIMITS, functions=self.functions
                )
            except NeedsData as need:
                await self.payloads.load(need.request)
        raise LimitError(f"the template needs more than {MOST_LOADS} parts of stored data")
