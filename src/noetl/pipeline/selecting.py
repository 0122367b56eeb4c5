"""Expressions that a worker evaluates for the server: each as a value, undefined, or an error, never an exception."""

from collections.abc import Sequence
from typing import Any

from noetl.model.envelope import Selected
from noetl.pipeline.failures import Failing
from noetl.pipeline.rendering import Rendering
from noetl.playbook import templates
from noetl.playbook.expressions import TemplateError, UndefinedError
from noetl.playbook.templates import Selection, parse_expression


async def selected(rendering: Rendering, template: Any) -> Selected:
    try:
        return Selected(value=await rendering.attempt(templates.render_value, template))
    except UndefinedError as error:
        return Selected(missing=error.missing)
    except TemplateError as error:
        return Selected(error=f"{error.code}: {error}"[:500])
    except Failing as failing:  # data that cannot be read
        return Selected(error=f"{failing.failure.code}: {failing.failure.message}"[:500])


async def all_selected(rendering: Rendering, selections: Sequence[Selection]) -> dict[str, Selected]:
    return {found.id: await selected(rendering, parse_expression(found.source)) for found in selections}
