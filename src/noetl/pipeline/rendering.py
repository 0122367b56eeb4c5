"""Templates over data that may be elsewhere: evaluate, load what was missing, evaluate again."""

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

MOST_LOADS = 10_000  # of one template: each brings data the one before did not have


@dataclass(frozen=True, slots=True)
class StoredRows:
    reference: Reference
    count: int
    payloads: ResultReader

    async def batches(self, size: int) -> AsyncIterator[list[Any]]:
        if is_rowset(self.reference):
            async for batch in self._of_rowset(size):
                yield batch
            return
        for start in range(0, self.count, size):
            yield await self.payloads.range(self.reference, start, min(start + size, self.count))

    async def reader(self) -> Any:
        """Of a row set, to be closed by whoever asks; None: they are JSON."""
        return await self.payloads.open(self.reference) if is_rowset(self.reference) else None

    async def _of_rowset(self, size: int) -> AsyncIterator[list[Any]]:
        """From one end to the other: by ranges, every part of the file would be read many times."""
        from noetl.results.rowsets import as_rows  # Arrow: only who reads row sets pays for it

        reader = await self.payloads.open(self.reference)
        try:
            found = reader.batches()
            while (batch := await asyncio.to_thread(next, found, None)) is not None:
                for start in range(0, batch.num_rows, size):
                    yield await asyncio.to_thread(as_rows, batch.slice(start, size))
        finally:
            await asyncio.to_thread(reader.close)


@dataclass(slots=True)
class TaskRendering:
    """Renders in one scope, made when the first template asks for it; `where` names it in errors."""

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
        """Like `value`, but a reference stays one."""
        return await self._evaluate(templates.evaluate, template)

    async def source(self, template: Any) -> Any:
        """Like `value`, but a stored row set stays where it is: a reader of it."""
        found = await self.lazy(template) if isinstance(template, str) else None
        reference = found.envelope.reference if isinstance(found, LazyResult) else None
        if reference is not None and is_rowset(reference) and not self.payloads.has(reference):
            return await self.payloads.open(reference)
        return await self.value(template)

    async def fetched(self, uri: str) -> Any:
        return await self.payloads.fetch(uri)

    async def rows(self, template: Any) -> Any:
        """Like `value`, but rows that are stored stay where they are, to be read by batches; also those of a map."""
        found = await self.lazy(template) if isinstance(template, str) else None
        reference = found.envelope.reference if isinstance(found, LazyResult) else None
        if not isinstance(found, LazyResult) or reference is None:
            return await self.value(template)
        if found.table is not None:
            await self.payloads.load(HeadOf(reference))
            return {
                **self.payloads.head(reference),
                str(reference.rows_at): self._rows(found.table),
            }
        return (
            await self.value(template)
            if found.rows_known is None
            else self._rows(reference, found.rows_known)
        )

    def _rows(self, reference: Reference, count: int | None = None) -> StoredRows:
        return StoredRows(
            replace(reference, rows_at=None), reference.rows or count or 0, self.payloads
        )

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
        self.payloads.trim()
        for _ in range(MOST_LOADS):
            try:
                return function(
                    template, self.scope, limits=WORKER_LIMITS, functions=self.functions
                )
            except NeedsData as need:
                await self.payloads.load(need.request)
        raise LimitError(f"the template needs more than {MOST_LOADS} parts of stored data")
