"""Conditions as text: taking a guard's expression apart only as far as combining guards needs."""

import re
from collections.abc import Mapping
from typing import Any

FAILED = "output.status == 'error'"
WELL = "output.status != 'error'"
EITHER = "output.status is defined"  # always true; it mentions the outcome, so that the arc is tried after a failure too
TRUE = "true"

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
_SAME = {"step.done": "call.done", "step.failed": "call.error"}


def expression(guard: Any) -> str | None:
    """The expression of a guard that is exactly one; None for mixed text."""
    if guard is None or guard is True:
        return TRUE
    if guard is False:
        return "false"
    text = str(guard).strip()
    if text.lower() in ("true", "false"):
        return text.lower()
    if not (text.startswith("{{") and text.endswith("}}")):
        return None
    inner = text[2:-2].strip("-+ \t\r\n")
    return None if "{{" in inner or "{%" in inner or "}}" in inner else inner


def guard(expression: str) -> str | bool:
    """A guard as playbooks write it; `true` needs no braces."""
    return True if expression == TRUE else f"{{{{ {expression} }}}}"


def all_of(*expressions: str) -> str:
    parts = [part for part in dict.fromkeys(expressions) if part != TRUE]
    if len(parts) < 2:
        return parts[0] if parts else TRUE
    return " and ".join(f"({part})" if re.search(r"\b(or|if)\b", part) else part for part in parts)


def none_of(*expressions: str) -> str:
    parts = list(dict.fromkeys(expressions))
    return f"not ({' or '.join(parts)})" if parts else TRUE


def events(expression: str) -> frozenset[str]:
    """Which events an old rule waits for, by their short names; empty when it names none."""
    return frozenset(EVENTS[name] for name in _QUOTED.findall(expression))


def without_events(expression: str, meaning: Mapping[str, str]) -> str:
    """The expression with every comparison of `event.name` replaced by what it means at the place it moves to."""

    def replaced(match: re.Match[str]) -> str:
        if match["many"] is not None:
            parts = list(
                dict.fromkeys(meaning[EVENTS[name]] for name in _QUOTED.findall(match["many"]))
            )
            if TRUE in parts:
                return TRUE
            if {FAILED, WELL} <= set(parts):
                return EITHER
            return f"({' or '.join(parts)})" if len(parts) > 1 else (parts or ["false"])[0]
        said = meaning[EVENTS[match["a"] or match["b"]]]
        return f"not ({said})" if "!=" in (match["op"], match["po"]) else said

    return _tidy(_COMPARED.sub(replaced, expression))


def in_words_of_the_log(text: str) -> str:
    """Comparisons of `event.name` with its second names, made with the first."""

    def renamed(match: re.Match[str]) -> str:
        return _QUOTED.sub(
            lambda quoted: quoted[0].replace(quoted[1], _SAME.get(quoted[1], quoted[1])), match[0]
        )

    return _COMPARED.sub(renamed, text)


def has_second_name(text: str) -> bool:
    """Whether a second name of an event is left in a text that `in_words_of_the_log` has been applied to."""
    return any(name in _SAME for name in _QUOTED.findall(text))


def _tidy(expression: str) -> str:
    text = re.sub(r"\(\s*true\s*\)", TRUE, expression)
    text = re.sub(r"(?<!not )\btrue and\s+", "", text)
    text = re.sub(r"\s+and true\b(?!\s*[=!<>|.(])", "", text)
    text = re.sub(r"^\(([^()]*)\)$", r"\1", text.strip())
    return text or TRUE
