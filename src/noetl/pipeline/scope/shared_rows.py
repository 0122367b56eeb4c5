"""Stored row sets as the input of a tool that takes columns: they never become objects of the worker.

Templates see such a member of the input as a StoredInput, and the tool gets its rows in shared memory.
"""

from typing import Any

from msgspec.structs import replace

from noetl.model.reference import Reference
from noetl.pipeline.failures import TaskFailed
from noetl.pipeline.scope.http_values import HTTP_ROWS_MEMBER
from noetl.pipeline.scope.lazy_results import LazyResult
from noetl.pipeline.scope.rendering import TaskRendering
from noetl.pipeline.scope.results import MAX_VALUE_ROWS, ResultReader, WholeValue, is_rowset
from noetl.results.formats.column_buffers import MIN_SHARED_RECORDS
from noetl.template.errors import FailedError, TemplateError
from noetl.template.model import Template, find_dotted_path
from noetl.template.parsing import parse
from noetl.template.rendering import Renderer

_MAX_PATH_CHARACTERS = 1_000  # of a template that is only a path, such as `{{ fetch.rows }}`
MAX_SHARED_MEMBERS = 16  # of one input: each has a descriptor


class StoredInput:
    """A Lazy over a stored row set that is a member of an input.

    Templates see its value, as of every member of an input, and not the facts of its envelope.
    """

    def __init__(self, result: LazyResult, reference: Reference, payloads: ResultReader) -> None:
        self.result = result
        self.reference = reference
        self._payloads = payloads

    def read_member(self, name: str) -> Any:
        at = self.reference.rows_at
        if at is None:
            raise LookupError(name)
        if name == at:
            return StoredInput(
                self.result.read_member(at), replace(self.reference, rows_at=None), self._payloads
            )
        return self._payloads.get_head(self.reference)[name]

    def read_item(self, index: int | slice) -> Any:
        if self.reference.rows_at is None:
            return self.result.read_item(index)
        if isinstance(index, slice):
            raise FailedError("a map has no slices")
        raise LookupError(index)

    def read_length(self) -> int:
        return self.result.read_length()

    def load_plain(self) -> Any:
        return self.result.load_plain()

    async def share_rows(self) -> Any:
        """The rows in shared memory, or as Python objects if there is no such memory."""
        try:
            return await self._payloads.share_rowset(self.reference)
        except OSError:
            return await self.read_value()

    async def read_value(self) -> Any:
        """The value as Python objects."""
        await self._payloads.load(WholeValue(self.reference))
        return self.load_plain()


def make_stored_input(value: Any, payloads: ResultReader) -> StoredInput | None:
    """The value as a member of an input, if it is a row set that a tool may get in shared memory.

    The data of an HTTP call is not: the map around it has a `body` that is not stored.
    """
    if isinstance(value, StoredInput):
        return value
    if not isinstance(value, LazyResult):
        return None
    reference = value.envelope.reference
    if reference is None or not is_rowset(reference) or value.is_in_memory:
        return None
    if reference.rows_at == HTTP_ROWS_MEMBER:
        return None
    if not MIN_SHARED_RECORDS <= (reference.rows or 0) <= MAX_VALUE_ROWS:
        return None
    return StoredInput(value, reference, payloads)


async def render_with_stored_rows(
    rendering: TaskRendering, layer: dict[str, Any]
) -> dict[str, Any]:
    """Render a layer of an input, but leave members that are stored row sets in the store."""
    stored: dict[str, StoredInput] = {}
    for name, template in layer.items():
        if "{" in name:  # the rendered name is another one
            return await _render_map(rendering, layer)
        result = await _find_stored_rows(rendering, template)
        if result is not None:
            stored[name] = result
    if not stored:
        return await _render_map(rendering, layer)
    others = {name: part for name, part in layer.items() if name not in stored}
    rendered: dict[str, Any] = await _render_map(rendering, others)
    return {name: stored[name] if name in stored else rendered[name] for name in layer}


async def _render_map(rendering: TaskRendering, layer: dict[str, Any]) -> dict[str, Any]:
    rendered: dict[str, Any] = await rendering.value(layer)
    return rendered


async def _find_stored_rows(rendering: TaskRendering, template: Any) -> StoredInput | None:
    """The row set that the template names, if it is nothing but a path. Errors appear when the layer
    is rendered."""
    if isinstance(template, str):
        if "{{" not in template or len(template) > _MAX_PATH_CHARACTERS:
            return None
        try:
            template = parse(template)
        except TemplateError:
            return None
    if not isinstance(template, Template) or find_dotted_path(template) is None:
        return None
    try:
        value = await rendering.evaluate_with_loads(Renderer.evaluate, template)
    except (TemplateError, TaskFailed):
        return None
    return make_stored_input(value, rendering.payloads)


async def share_stored_rows(task_input: dict[str, Any]) -> dict[str, Any]:
    """The input with its row sets in shared memory. Those beyond `MAX_SHARED_MEMBERS` become objects."""
    shared: dict[str, Any] = dict(task_input)
    stored = [name for name, part in task_input.items() if isinstance(part, StoredInput)]
    for name in stored[:MAX_SHARED_MEMBERS]:
        shared[name] = await task_input[name].share_rows()
    for name in stored[MAX_SHARED_MEMBERS:]:
        shared[name] = await task_input[name].read_value()
    return shared
