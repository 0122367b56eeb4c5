"""Expressions that a worker evaluates for the server. Each is a scalar, a reference, undefined or an error; none raises."""

from collections.abc import Sequence
from typing import Any, Literal

from noetl.model.envelope import SCALAR_LIMIT, Selected
from noetl.model.reference import Reference
from noetl.pipeline.data import HttpValue, LazyResult
from noetl.pipeline.failures import Failing
from noetl.pipeline.rendering import TaskRendering
from noetl.playbook import templates
from noetl.playbook.expressions import TemplateError, Undefined, UndefinedError, is_lazy
from noetl.playbook.templates import Selection, parse_expression

MAX_SCALAR_PAYLOAD = 8 * SCALAR_LIMIT  # bytes; a larger payload is no scalar that an event carries
MAX_ERROR_CHARACTERS = 250


async def selected(rendering: TaskRendering, template: Any) -> Selected:
    """A stored list or map is named, not opened. What is not stored by itself yet is a value here; `Persist` stores it."""
    try:
        if isinstance(template, str | templates.Template):
            found = await rendering.attempt(templates.evaluate, template)
            if (reference := _reference_of(found)) is not None:
                return Selected(stored=reference)
            if not is_lazy(found):
                return Selected(value=found)
        return Selected(value=await rendering.attempt(templates.render_value, template))
    except (TemplateError, Failing) as error:
        return await _failed(rendering, template, error)


async def judged(rendering: TaskRendering, template: Any) -> Selected:
    """The verdict of a guard: what it looked at stays here."""
    try:
        return Selected(value=await rendering.attempt(templates.guard, template))
    except (TemplateError, Failing) as error:
        return await _failed(rendering, template, error)


async def all_selected(
    rendering: TaskRendering, selections: Sequence[Selection]
) -> dict[str, Selected]:
    return {
        found.id: await selected(rendering, parse_expression(found.source)) for found in selections
    }


async def _failed(
    rendering: TaskRendering, template: Any, error: TemplateError | Failing
) -> Selected:
    if isinstance(error, UndefinedError):
        absent = await _absent(rendering, template)
        return Selected(missing=error.missing, absent=absent, because=error.because)
    if isinstance(error, Failing):  # data that cannot be read
        return Selected(
            error=f"{error.failure.code}: {error.failure.message}"[:MAX_ERROR_CHARACTERS]
        )
    return Selected(error=f"{error.code}: {error}"[:MAX_ERROR_CHARACTERS])


async def _absent(rendering: TaskRendering, template: Any) -> Literal["", "error", "step"]:
    """Why the value itself is missing; "" when a missing value was used on the way to it."""
    try:
        found = await rendering.attempt(templates.probe, template)
    except (TemplateError, Failing):
        return ""
    return found.absent if isinstance(found, Undefined) else ""


def _reference_of(value: Any) -> Reference | None:
    """The payload that the value is, when it is stored by itself and cannot be a scalar."""
    found = value.inner if isinstance(value, HttpValue) else value
    reference = found.envelope.reference if isinstance(found, LazyResult) else None
    if reference is None or not reference.ref_id:
        return None
    has_rows = reference.rows is not None or reference.rows_at is not None
    return reference if has_rows or (reference.bytes or 0) > MAX_SCALAR_PAYLOAD else None
