"""Expressions that a worker evaluates for the server.

Each gives a scalar, a reference, undefined or an error; none raises.
"""

from collections.abc import Sequence
from typing import Any, Literal

from noetl.model.envelope import MAX_SCALAR_BYTES, Selected
from noetl.model.reference import Reference
from noetl.pipeline.failures import TaskFailed
from noetl.pipeline.scope.lazy_results import HttpValue, LazyResult
from noetl.pipeline.scope.rendering import TaskRendering
from noetl.template.errors import TemplateError, UndefinedError
from noetl.template.model import Selection, Template
from noetl.template.parsing import parse_expression
from noetl.template.rendering import Renderer
from noetl.template.values import Undefined, is_lazy

MAX_SCALAR_PAYLOAD_BYTES = 8 * MAX_SCALAR_BYTES  # bytes; a larger payload is too large for an event
MAX_ERROR_CHARACTERS = 250


async def select_value(rendering: TaskRendering, template: Any) -> Selected:
    """Evaluate an expression.

    A stored list or map is named and not opened. A value that is not stored by itself is returned
    as it is; `ResultWriter` stores it.
    """
    try:
        if isinstance(template, str | Template):
            value = await rendering.evaluate_with_loads(Renderer.evaluate, template)
            reference = _find_large_reference(value)
            if reference is not None:
                return Selected(stored=reference)
            if not is_lazy(value):
                return Selected(value=value)
        return Selected(value=await rendering.evaluate_with_loads(Renderer.render_value, template))
    except (TemplateError, TaskFailed) as error:
        return await _failed_selection(rendering, template, error)


async def judge_guard(rendering: TaskRendering, template: Any) -> Selected:
    """Evaluate a guard. Only its verdict is returned, not the data it read."""
    try:
        return Selected(
            value=await rendering.evaluate_with_loads(Renderer.evaluate_guard, template)
        )
    except (TemplateError, TaskFailed) as error:
        return await _failed_selection(rendering, template, error)


async def select_all(
    rendering: TaskRendering, selections: Sequence[Selection]
) -> dict[str, Selected]:
    values: dict[str, Selected] = {}
    for selection in selections:
        values[selection.id] = await select_value(rendering, parse_expression(selection.source))
    return values


async def _failed_selection(
    rendering: TaskRendering, template: Any, error: TemplateError | TaskFailed
) -> Selected:
    if isinstance(error, UndefinedError):
        absent = await _find_absence(rendering, template)
        return Selected(
            missing=error.missing,
            absent=absent,
            because=error.because,
        )
    if isinstance(error, TaskFailed):  # data that cannot be read
        message = f"{error.failure.code}: {error.failure.message}"
    else:
        message = f"{error.code}: {error}"
    return Selected(error=cut_error(message))


def cut_error(message: str) -> str:
    """The beginning of a message. The mark of the cut says where the redactor looks for a secret."""
    if len(message) <= MAX_ERROR_CHARACTERS:
        return message
    return f"{message[: MAX_ERROR_CHARACTERS - 1]}…"


async def _find_absence(rendering: TaskRendering, template: Any) -> Literal["", "error", "step"]:
    """Why the value itself is missing; "" if only a value that the expression used is missing."""
    try:
        value = await rendering.evaluate_with_loads(Renderer.probe, template)
    except (TemplateError, TaskFailed):
        return ""
    return value.absent if isinstance(value, Undefined) else ""


def _find_large_reference(value: Any) -> Reference | None:
    """The payload of the value, if it is stored by itself and cannot be a scalar."""
    if isinstance(value, HttpValue):
        value = value.inner
    if not isinstance(value, LazyResult):
        return None
    reference = value.envelope.reference
    if reference is None or not reference.ref_id:
        return None
    has_rows = reference.rows is not None or reference.rows_at is not None
    is_large = (reference.bytes or 0) > MAX_SCALAR_PAYLOAD_BYTES
    return reference if has_rows or is_large else None
