"""Finds functions by name, checks their arguments, and calls them."""

from collections.abc import Callable, Mapping
from functools import lru_cache
from inspect import signature
from typing import TypeAlias

from noetl.template.errors import (
    FailedError,
    ForbiddenError,
    TemplateError,
    TemplateSyntaxError,
    hint_at_similar_name,
)
from noetl.template.values import Value

Function: TypeAlias = Callable[..., Value]

# Names of Jinja that this language omits, because they read Python attributes, format or escape
# text, or are not repeatable.
OMITTED_NAMES: Mapping[str, frozenset[str]] = {
    "filter": frozenset(
        {"attr", "center", "e", "escape", "filesizeformat", "forceescape", "format", "pprint"}
    )
    | {"random", "safe", "striptags", "urlize", "wordwrap", "xmlattr"},
    "test": frozenset(("callable", "escaped", "filter", "sameas", "test")),
}


def find_function(table: Mapping[str, Function], name: str, what: str) -> Function:
    """Return the filter or test of this name. `what` is "filter" or "test"."""
    function = table.get(name)
    if function is not None:
        return function
    if name in OMITTED_NAMES.get(what, ()):
        raise ForbiddenError(f"the {what} '{name}' is not part of the template language")
    hint = hint_at_similar_name(name, table)
    raise TemplateSyntaxError(f"there is no {what} '{name}'", hint=hint)


@lru_cache(maxsize=1024)
def check_arguments(
    function: Function,
    name: str,
    args: int,
    kwargs: tuple[str, ...] = (),
    leading: int = 2,
) -> None:
    """Refuse arguments that do not fit the function's signature.

    `leading` arguments come before those of the template: the meter and, except for globals, the
    subject.
    """
    positional = [None] * (leading + args)
    try:
        signature(function).bind(*positional, **dict.fromkeys(kwargs))
    except TypeError as exc:
        raise TemplateSyntaxError(f"{name}: {exc}") from None


def call_template_function(function: Function, name: str, *args: Value, **kwargs: Value) -> Value:
    """Call a function. Values of a wrong type are an error of the template, not a bug."""
    try:
        return function(*args, **kwargs)
    except TemplateError:
        raise
    except (TypeError, ValueError, ArithmeticError, AttributeError) as exc:
        raise FailedError(f"{name} does not apply to these values") from exc
