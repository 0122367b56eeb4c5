"""Conditions as text. A guard's expression is parsed only as far as combining guards needs."""

import re
from collections.abc import Mapping
from typing import Any

FAILED_GUARD = "output.status == 'error'"
SUCCEEDED_GUARD = "output.status != 'error'"
# Always true. It mentions the outcome, so that the arc is tried after a failure too.
ENDED_GUARD = "output.status is defined"
TRUE_GUARD = "true"

EVENTS = {
    "call.error": "error",
    "step.failed": "error",
    "call.done": "done",
    "step.done": "done",
    "step.exit": "exit",
    "loop.item": "item",
    "loop.done": "loop",
}
_NAMES = "|".join(re.escape(name) for name in EVENTS)
_COMPARED = re.compile(
    rf"""event\.(?:name|type)\s*(?P<op>==|!=)\s*(?P<q>['"])(?P<a>{_NAMES})(?P=q)"""
    rf"""|(?P<r>['"])(?P<b>{_NAMES})(?P=r)\s*(?P<po>==|!=)\s*event\.(?:name|type)"""
    rf"""|event\.(?:name|type)\s+in\s+[\[(](?P<many>[^\])]*)[\])]"""
)
_QUOTED = re.compile(rf"""['"]({_NAMES})['"]""")
_FIRST_NAMES = {"step.done": "call.done", "step.failed": "call.error"}


def parse_guard(guard: Any) -> str | None:
    """The expression of a guard; None if the guard is not exactly one expression."""
    if guard is None or guard is True:
        return TRUE_GUARD
    if guard is False:
        return "false"
    text = str(guard).strip()
    if text.lower() in ("true", "false"):
        return text.lower()
    if not (text.startswith("{{") and text.endswith("}}")):
        return None
    inner = text[2:-2].strip("-+ \t\r\n")
    if "{{" in inner or "{%" in inner or "}}" in inner:
        return None
    return inner


def make_guard(expression: str) -> str | bool:
    """A guard as playbooks write it; `true` needs no braces."""
    if expression == TRUE_GUARD:
        return True
    return f"{{{{ {expression} }}}}"


def join_all(*expressions: str) -> str:
    parts = [part for part in dict.fromkeys(expressions) if part != TRUE_GUARD]
    if not parts:
        return TRUE_GUARD
    if len(parts) == 1:
        return parts[0]
    return " and ".join(_add_parentheses(part) for part in parts)


def _add_parentheses(expression: str) -> str:
    """The expression as an operand of `and`."""
    if re.search(r"\b(or|if)\b", expression):
        return f"({expression})"
    return expression


def exclude_all(*expressions: str) -> str:
    parts = list(dict.fromkeys(expressions))
    if not parts:
        return TRUE_GUARD
    return f"not ({' or '.join(parts)})"


def find_events(expression: str) -> frozenset[str]:
    """The events that an old rule waits for, by their short names; empty if it names none."""
    return frozenset(EVENTS[name] for name in _QUOTED.findall(expression))


def replace_events(expression: str, meaning: Mapping[str, str]) -> str:
    """Replace every comparison of `event.name` by its meaning at the place the expression moves to."""

    def replace_comparison(match: re.Match[str]) -> str:
        if match["many"] is not None:
            return _join_events(match["many"], meaning)
        condition = meaning[EVENTS[match["a"] or match["b"]]]
        if "!=" in (match["op"], match["po"]):
            return f"not ({condition})"
        return condition

    return _simplify_guard(_COMPARED.sub(replace_comparison, expression))


def _join_events(names: str, meaning: Mapping[str, str]) -> str:
    """The meaning of `event.name in [names]`."""
    conditions = [meaning[EVENTS[name]] for name in _QUOTED.findall(names)]
    parts = list(dict.fromkeys(conditions))
    if TRUE_GUARD in parts:
        return TRUE_GUARD
    if {FAILED_GUARD, SUCCEEDED_GUARD} <= set(parts):
        return ENDED_GUARD
    if not parts:
        return "false"
    if len(parts) == 1:
        return parts[0]
    return f"({' or '.join(parts)})"


def use_first_event_names(text: str) -> str:
    """Replace the second names of events (`step.done`) in comparisons with `event.name` by the first."""

    def rename_quoted(quoted: re.Match[str]) -> str:
        name = quoted[1]
        return quoted[0].replace(name, _FIRST_NAMES.get(name, name))

    def rename_events(match: re.Match[str]) -> str:
        return _QUOTED.sub(rename_quoted, match[0])

    return _COMPARED.sub(rename_events, text)


def has_second_name(text: str) -> bool:
    """Whether a second name of an event is left after `in_words_of_the_log`."""
    return any(name in _FIRST_NAMES for name in _QUOTED.findall(text))


def _simplify_guard(expression: str) -> str:
    text = re.sub(r"\(\s*true\s*\)", TRUE_GUARD, expression)
    text = re.sub(r"(?<!not )\btrue and\s+", "", text)
    text = re.sub(r"\s+and true\b(?!\s*[=!<>|.(])", "", text)
    text = re.sub(r"^\(([^()]*)\)$", r"\1", text.strip())
    return text or TRUE_GUARD
