"""Methods of text, maps and lists."""

from collections.abc import Callable, Mapping

from noetl.template.errors import FailedError
from noetl.template.functions.arguments import (
    optional_text,
    require_integer,
    require_text,
)
from noetl.template.functions.calling import Function
from noetl.template.functions.lists import (
    join_items,
    list_map_items,
    list_map_keys,
    list_map_values,
)
from noetl.template.functions.text import (
    replace_text,
    spend_pieces,
    split_text,
    strip_both,
    strip_left,
    strip_right,
)
from noetl.template.limits import Meter
from noetl.template.members import list_elements
from noetl.template.operators import count_equal, find_position, is_truthy
from noetl.template.values import Value

_LINE_ENDS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"


def _make_strip_method(strip: Callable[[Meter, str, str | None], str]) -> Function:
    def strip_text(meter: Meter, value: str, chars: Value = None) -> str:
        return strip(meter, value, optional_text(chars, "strip"))

    return strip_text


def _make_change_method(change: Callable[[str], str], *, is_quick: bool = False) -> Function:
    def change_text(meter: Meter, value: str) -> str:
        meter.spend_case_change(value, is_quick)
        return change(value)

    return change_text


def _make_question_method(question: Callable[[str], bool]) -> Function:
    def ask_text(meter: Meter, value: str) -> bool:
        meter.spend_reading(len(value))
        return question(value)

    return ask_text


def _make_affix_method(change: Callable[[str, str], str], function_name: str) -> Function:
    def change_affix(meter: Meter, value: str, other: Value) -> str:
        other = require_text(other, function_name)
        meter.spend_reading(len(other))
        meter.spend_text(len(value), value.isascii())
        return change(value, other)

    return change_affix


def _make_search_method(question: Callable[[str, str], Value], function_name: str) -> Function:
    def search_text(meter: Meter, value: str, other: Value) -> Value:
        other = require_text(other, function_name)
        meter.spend_reading(len(value) + len(other))
        return question(value, other)

    return search_text


def _split_lines(meter: Meter, value: str, keepends: Value = False) -> list[Value]:
    for _ in _LINE_ENDS:
        meter.spend_reading(len(value))
    line_count = sum(map(value.count, _LINE_ENDS)) + 1
    meter.spend_text(len(value), value.isascii())
    spend_pieces(meter, line_count)
    return list(value.splitlines(is_truthy(keepends)))


def _join_method(meter: Meter, value: str, entries: Value) -> str:
    for entry in list_elements(meter, entries):
        require_text(entry, "join")
    return join_items(meter, entries, value)


def _replace_method(
    meter: Meter,
    value: str,
    old: Value,
    new: Value,
    count: Value = -1,
) -> str:
    old = require_text(old, "replace")
    new = require_text(new, "replace")
    return replace_text(meter, value, old, new, count)


def _pad_with_zeros(meter: Meter, value: str, width: Value) -> str:
    size = require_integer(width, "zfill")
    meter.spend_text(max(size, len(value)), value.isascii())
    return value.zfill(size)


def _get_method(
    meter: Meter,
    value: dict[str, Value],
    key: Value,
    default: Value = None,
) -> Value:
    return value.get(require_text(key, "get"), default)


def _find_index(meter: Meter, value: list[Value], wanted: Value) -> int:
    position = find_position(meter, value, wanted)
    if position is None:
        raise FailedError("index: the list does not have this item")
    return position


def _count_occurrences(meter: Meter, value: list[Value], wanted: Value) -> int:
    return count_equal(meter, value, wanted)


METHODS: Mapping[type, Mapping[str, Function]] = {
    str: {
        "upper": _make_change_method(str.upper, is_quick=True),
        "lower": _make_change_method(str.lower, is_quick=True),
        "title": _make_change_method(str.title),
        "capitalize": _make_change_method(str.capitalize),
        "strip": _make_strip_method(strip_both),
        "lstrip": _make_strip_method(strip_left),
        "rstrip": _make_strip_method(strip_right),
        "split": split_text,
        "splitlines": _split_lines,
        "join": _join_method,
        "startswith": _make_search_method(str.startswith, "startswith"),
        "endswith": _make_search_method(str.endswith, "endswith"),
        "removeprefix": _make_affix_method(str.removeprefix, "removeprefix"),
        "removesuffix": _make_affix_method(str.removesuffix, "removesuffix"),
        "replace": _replace_method,
        "find": _make_search_method(str.find, "find"),
        "count": _make_search_method(str.count, "count"),
        "isdigit": _make_question_method(str.isdigit),
        "isalpha": _make_question_method(str.isalpha),
        "zfill": _pad_with_zeros,
    },
    dict: {
        "get": _get_method,
        "keys": list_map_keys,
        "values": list_map_values,
        "items": list_map_items,
    },
    list: {"index": _find_index, "count": _count_occurrences},
}
METHOD_NAMES = frozenset(name for methods in METHODS.values() for name in methods)


def find_method(value: Value, name: str) -> Function | None:
    for kind, methods in METHODS.items():
        if isinstance(value, kind):
            return methods.get(name)
    return None
