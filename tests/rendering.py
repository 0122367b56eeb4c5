"""Rendering of one template, for tests: the methods of a `Renderer` as functions."""

from typing import Any

from noetl.template.limits import SERVER_LIMITS, WORKER_LIMITS, RenderLimits
from noetl.template.model import MarkedValue, Scope, Selection, SelectionResolver, Template
from noetl.template.parsing import parse_expression
from noetl.template.rendering import Renderer
from noetl.template.replay_functions import Functions


def _make_renderer(
    limits: RenderLimits = SERVER_LIMITS,
    functions: Functions | None = None,
    selected: SelectionResolver | None = None,
) -> Renderer:
    return Renderer(limits, functions, selected)


def render(template: Template | str, scope: Scope, **given: Any) -> Any:
    return _make_renderer(**given).render(template, scope)


def render_value(value: Any, scope: Scope, **given: Any) -> Any:
    return _make_renderer(**given).render_value(value, scope)


def render_marked(
    template: Template | str, scope: Scope, **given: Any
) -> tuple[str, list[MarkedValue]]:
    return _make_renderer(**given).render_marked(template, scope)


def evaluate(template: Template | str, scope: Scope, **given: Any) -> Any:
    return _make_renderer(**given).evaluate(template, scope)


def evaluate_guard(template: Any, scope: Scope, **given: Any) -> bool:
    return _make_renderer(**given).evaluate_guard(template, scope)


def probe(template: Template | str, scope: Scope, **given: Any) -> Any:
    return _make_renderer(**given).probe(template, scope)


def compute_selection(
    selection: Selection, scope: Scope, *, limits: RenderLimits = WORKER_LIMITS
) -> Any:
    """Evaluate a selection as a worker does. Returns an Undefined if the value is undefined."""
    return Renderer(limits).probe(parse_expression(selection.source), scope)
