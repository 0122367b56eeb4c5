"""Renders templates.

Inside text, values look as in JSON: `true`, `false`, `null`, numbers, compact maps and lists. Text
values are inserted without quotes.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from noetl.template.errors import (
    FailedError,
    ForbiddenError,
    LimitError,
    TemplateError,
    UndefinedError,
)
from noetl.template.limits import SERVER_LIMITS, RenderLimits
from noetl.template.model import MarkedValue, RenderingFrame, Scope, SelectionResolver, Template
from noetl.template.parsing import has_tag, parse
from noetl.template.replay_functions import Functions
from noetl.template.values import (
    JSON_SCALAR_TYPES,
    JSON_VALUE_TYPES,
    Undefined,
    Value,
    is_lazy,
    kind_of,
    settle,
    to_plain,
)
from noetl.template.writing import write_scalar


class Renderer(Struct, frozen=True):
    """Evaluates templates. Each call begins with the whole budget of `limits`.

    `functions` are `now()`, `uuid()` and `random()`: a template that calls one fails without them.
    `selected` gives the values of selections.
    """

    limits: RenderLimits = SERVER_LIMITS
    functions: Functions | None = None
    selected: SelectionResolver | None = None

    def render(self, template: Template | str, scope: Scope) -> Value:
        """Return the value of a template as plain JSON."""
        if isinstance(template, str):
            template = _parse_within_limits(template, self.limits)
        if template.tree is None:
            return template.source
        frame = RenderingFrame(scope, self.limits, self.functions, self.selected)
        value = _evaluate_template(template, frame)
        if type(value) in JSON_VALUE_TYPES:
            return value
        return to_plain(frame, value)

    def render_value(self, value: Value, scope: Scope) -> Value:
        """Render every text in a structure, keys included, with one budget for all of them."""
        frame = RenderingFrame(scope, self.limits, self.functions, self.selected)
        return _render_part(value, frame, 0)

    def evaluate(self, template: Template | str, scope: Scope) -> Value:
        """Like `render`, but a lazy value stays lazy: the caller gets the reference, not its data."""
        if isinstance(template, str):
            template = _parse_within_limits(template, self.limits)
        frame = RenderingFrame(scope, self.limits, self.functions, self.selected)
        return _evaluate_template(template, frame)

    def probe(self, template: Template | str, scope: Scope) -> Value:
        """Like `evaluate`, but returns an undefined value as an Undefined instead of raising."""
        if isinstance(template, str):
            template = _parse_within_limits(template, self.limits)
        frame = RenderingFrame(scope, self.limits, self.functions, self.selected)
        if template.evaluate is None:
            return _evaluate_template(template, frame)
        try:
            frame.spend_operations(template.weight)
            value = template.evaluate(frame)
            if isinstance(value, Undefined) or is_lazy(value):
                return value
            return to_plain(frame, value)
        except TemplateError as exc:
            _record_place(exc, template.source)
            raise

    def evaluate_guard(self, template: Template | Value, scope: Scope) -> bool:
        """Evaluate a `when`. See `is_guard_true` for how its value becomes a bool.

        A value that is absent, such as the error of a success, counts as false instead of raising.
        """
        value: Value = template
        if isinstance(template, (str, Template)):
            try:
                value = self.render(template, scope)
            except UndefinedError:
                if self.is_absent(template, scope):
                    return False
                raise
        return is_guard_true(value)

    def is_absent(self, template: Template | str, scope: Scope) -> bool:
        """Whether the value is missing by design, such as the error of a success."""
        value = self.probe(template, scope)
        return isinstance(value, Undefined) and bool(value.absent)

    def render_marked(
        self, template: Template | str, scope: Scope
    ) -> tuple[str, list[MarkedValue]]:
        """Return the text with a marker for every `{{ expression }}`, and the marked values.

        The markers cannot occur in the template's own text, and no value is part of the text. So a
        tool can replace each marker by a query parameter. If the last filter of an expression is
        `identifier` or `sql`, it sets the kind, and the marked value is the input of that filter.
        """
        if isinstance(template, str):
            template = _parse_within_limits(template, self.limits)
        if template.tree is None:
            return template.source, []
        frame = RenderingFrame(scope, self.limits, self.functions, self.selected)
        frame.mark = _find_free_character(template.source)
        frame.marks = []
        try:
            frame.spend_operations(template.weight)
            return _emit_text(template, frame), frame.marks
        except TemplateError as exc:
            _record_place(exc, template.source)
            raise


_PRIVATE_CHARACTER = re.compile("[\ue000-\uf8ff]")
_GUARD_WORDS = {
    "true": True,
    "yes": True,
    "1": True,
    "false": False,
    "no": False,
    "0": False,
}


def is_guard_true(value: Value) -> bool:
    """Convert the value of a guard to a bool.

    The texts true, yes, 1, false, no and 0 (in any case) mean what they say. Any other value counts
    by its truth: null, 0, and empty texts, lists and maps are false.
    """
    if isinstance(value, str):
        word = value.strip().lower()
        return _GUARD_WORDS.get(word, bool(value))
    return bool(value)


def _evaluate_template(template: Template, frame: RenderingFrame) -> Value:
    """Return the value of a template.

    It is lazy if the template is one expression with a lazy value.
    """
    if template.tree is None:
        return template.source
    try:
        frame.spend_operations(template.weight)
        if template.evaluate is not None:
            value = template.evaluate(frame)
            if type(value) in JSON_SCALAR_TYPES or is_lazy(value):
                return value
            return to_plain(frame, value)
        return _emit_text(template, frame)
    except TemplateError as exc:
        _record_place(exc, template.source)
        raise


def _emit_text(template: Template, frame: RenderingFrame) -> str:
    assert template.emit is not None
    frame.out = []
    template.emit(frame)
    size = sum(map(len, frame.out))
    if size > frame.limits.text:
        raise LimitError(f"the template makes more than {frame.limits.text} characters of text")
    return "".join(frame.out)


def _record_place(exc: TemplateError, source: str) -> None:
    """Record which template failed, and where the missing name is in it. The first place stays."""
    if exc.template is not None:
        return
    exc.template = source
    if not isinstance(exc, UndefinedError):
        return
    offset = source.find(exc.missing)
    if offset >= 0:
        exc.line = source.count("\n", 0, offset) + 1
        exc.column = offset - source.rfind("\n", 0, offset)


def _render_part(value: Value, frame: RenderingFrame, depth: int) -> Value:
    kind = type(value)
    if kind is Template or kind is str or isinstance(value, (str, Template)):
        template = value if kind is Template else _parse_within_limits(value, frame.limits)
        rendered = _evaluate_template(template, frame)
        if type(rendered) in JSON_VALUE_TYPES:
            return rendered
        return to_plain(frame, rendered)
    if kind is dict or isinstance(value, (list, tuple, Mapping)):
        if depth >= frame.limits.depth:
            raise LimitError(f"a value is nested more than {frame.limits.depth} deep")
        frame.spend_operations(1 + len(value))
    if kind is dict or isinstance(value, Mapping):
        rendered = {}
        for key, part in value.items():
            try:
                name = _render_key(key, frame)
                rendered[name] = _render_part(part, frame, depth + 1)
            except TemplateError as error:
                error.path = f".{key}{error.path}"
                raise
        if len(rendered) != len(value):
            raise FailedError("two keys of a map render to the same text")
        return rendered
    if isinstance(value, (list, tuple)):
        return _render_list(value, frame, depth)
    return to_plain(frame, value)


def _parse_within_limits(source: str, limits: RenderLimits) -> Template:
    if len(source) > limits.source and has_tag(source):
        raise LimitError(f"the template is longer than {limits.source} characters")
    return parse(source)


def _render_list(
    parts: Sequence[Value],
    frame: RenderingFrame,
    depth: int,
) -> list[Value]:
    rendered: list[Value] = []
    for entry in parts:
        try:
            rendered.append(_render_part(entry, frame, depth + 1))
        except TemplateError as error:
            error.path = f"[{len(rendered)}]{error.path}"
            raise
    return rendered


def _render_key(key: Any, frame: RenderingFrame) -> str:
    if isinstance(key, str):
        if "{" not in key:
            return key
        key = settle(_evaluate_template(_parse_within_limits(key, frame.limits), frame))
    if isinstance(key, (list, dict)) or key is None:
        raise FailedError(f"{kind_of(key)} cannot be a key, keys are text")
    return write_scalar(key)


def _find_free_character(source: str) -> str:
    """Return a character of Unicode's private use area that the source does not contain."""
    used = frozenset(_PRIVATE_CHARACTER.findall(source))
    for code in range(0xE000, 0xF900):
        if chr(code) not in used:
            return chr(code)
    raise ForbiddenError("the template uses every private character")
