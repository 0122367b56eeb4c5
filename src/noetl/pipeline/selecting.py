"""Expressions that a worker evaluates for the server: each as a value, undefined, or an error, never an exception."""

from collections.abc import Sequence
from typing import Any, Literal

from noetl.model.envelope import Selected
from noetl.pipeline.data import Stored
from noetl.pipeline.failures import Failing
from noetl.pipeline.rendering import Rendering
from noetl.playbook import templates
from noetl.playbook.expressions import TemplateError, Undefined, UndefinedError
from noetl.playbook.templates import Selection, parse_expression

SMALL = 4_096  # bytes


async def selected(rendering: Rendering, template: Any) -> Selected:
    try:
        return Selected(value=await rendering.attempt(templates.render_value, template))
    except UndefinedError as error:
        return Selected(missing=error.missing, absent=await _absent(rendering, template))
    except TemplateError as error:
        return Selected(error=f"{error.code}: {error}"[:500])
    except Failing as failing:  # data that cannot be read
        return Selected(error=f"{failing.failure.code}: {failing.failure.message}"[:500])


async def _absent(rendering: Rendering, template: Any) -> Literal["", "error", "step"]:
    """Why the value itself is missing; "" when a missing value was used on the way to it."""
    try:
        found = await rendering.attempt(templates.probe, template)
    except (TemplateError, Failing):
        return ""
    return found.absent if isinstance(found, Undefined) else ""


async def all_selected(
    rendering: Rendering, selections: Sequence[Selection], collections: frozenset[str]
) -> dict[str, Selected]:
    """What loops run over is named, not opened, unless it is small enough for the server to look at."""
    made: dict[str, Selected] = {}
    for found in selections:
        template = parse_expression(found.source)
        named = await _named(rendering, template) if found.id in collections else None
        made[found.id] = named or await selected(rendering, template)
    return made


async def _named(rendering: Rendering, template: Any) -> Selected | None:
    try:
        value = await rendering.attempt(templates.evaluate, template)
    except (TemplateError, Failing):  # told by whoever renders it
        return None
    reference = value.envelope.reference if isinstance(value, Stored) else None
    if reference is None or (reference.bytes or 0) <= SMALL:
        return None
    return Selected(reference=reference.uri)
