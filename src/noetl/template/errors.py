"""Errors of templates, and the hints they give."""

from collections.abc import Iterable
from difflib import get_close_matches

from noetl.model.errors import NoetlError

_MAX_SUGGESTED_CHARACTERS = 100


class TemplateError(NoetlError):
    """A template is wrong, or its evaluation failed.

    TemplateError
    ├── TemplateSyntaxError   TEMPLATE_SYNTAX      it does not parse, or has an unknown filter
    ├── UndefinedError        TEMPLATE_UNDEFINED   it uses a missing name or member
    ├── LimitError            TEMPLATE_LIMIT       it would cost more than allowed
    ├── ForbiddenError        TEMPLATE_FORBIDDEN   it uses a part of Jinja that is left out
    └── FailedError           TEMPLATE_FAILED      an operation does not apply to its values
    """

    code = "TEMPLATE_FAILED"

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        line: int | None = None,
        column: int | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.message = message
        self.line = line
        self.column = column
        self.template: str | None = None
        self.path = ""  # where the template is in the rendered structure, such as `.rows[2].id`

    def __str__(self) -> str:
        if self.hint:
            return f"{self.message} ({self.hint})"
        return self.message


class TemplateSyntaxError(TemplateError):
    code = "TEMPLATE_SYNTAX"


class LimitError(TemplateError):
    code = "TEMPLATE_LIMIT"


class ForbiddenError(TemplateError):
    code = "TEMPLATE_FORBIDDEN"


class FailedError(TemplateError):
    code = "TEMPLATE_FAILED"


class UndefinedError(TemplateError):
    code = "TEMPLATE_UNDEFINED"

    def __init__(self, expression: str, missing: str, because: str = "") -> None:
        message = f"'{missing}' is undefined"
        if expression != missing:
            message = f"'{expression}' cannot be used: {message}"
        if because:
            message += f", because {because}"
        super().__init__(message, hint="test it with 'is defined' or give default(...)")
        self.expression = expression
        self.missing = missing
        self.because = because


class NeedsData(Exception):
    """A Lazy raises this if its data is not loaded yet. The caller loads it and evaluates again."""

    def __init__(self, request: object) -> None:
        super().__init__(request)
        self.request = request


def suggest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most similar to this one, or None if none is similar."""
    if len(name) > _MAX_SUGGESTED_CHARACTERS:
        return None
    matches = get_close_matches(name, sorted(known), n=1, cutoff=0.6)
    return matches[0] if matches else None


def hint_at_similar_name(name: str, known: Iterable[str]) -> str | None:
    similar = suggest(name, known)
    if similar is None:
        return None
    return f"did you mean '{similar}'?"
