"""Templates over data that may be elsewhere: evaluate, load what was missing, evaluate again."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from noetl.pipeline.data import Payloads, Stored, is_rowset
from noetl.pipeline.failures import Failing, template_failure
from noetl.playbook import templates
from noetl.playbook.expressions import WORKER_LIMITS, Functions, LimitError, NeedsData, TemplateError
from noetl.playbook.templates import Marked

MOST_LOADS = 10_000  # of one template: each brings data the one before did not have


@dataclass(frozen=True)
class Rendering:
    """Renders in one scope, made when the first template asks for it; `where` names it in errors."""

    names: Callable[[], dict[str, Any]]
    payloads: Payloads
    functions: Functions
    where: str

    @cached_property
    def scope(self) -> dict[str, Any]:
        return self.names()

    async def value(self, template: Any) -> Any:
        return await self._evaluate(templates.render_value, template)

    async def lazy(self, template: Any) -> Any:
        """Like `value`, but a reference stays one."""
        return await self._evaluate(templates.evaluate, template)

    async def source(self, template: Any) -> Any:
        """Like `value`, but a stored row set stays where it is: a reader of it."""
        found = await self.lazy(template) if isinstance(template, str) else None
        reference = found.envelope.reference if isinstance(found, Stored) else None
        if reference is not None and is_rowset(reference) and not self.payloads.has(reference):
            return await self.payloads.open(reference)
        return await self.value(template)

    async def fetched(self, uri: str) -> Any:
        return await self.payloads.fetch(uri)

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
                return function(template, self.scope, limits=WORKER_LIMITS, functions=self.functions)
            except NeedsData as need:
                await self.payloads.load(need.request)
        raise LimitError(f"the template needs more than {MOST_LOADS} parts of stored data")
