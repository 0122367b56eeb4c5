"""Filters of text."""

import re
from collections.abc import Callable
from urllib.parse import quote as quote_url

from noetl.template.errors import FailedError
from noetl.template.functions.arguments import optional_text, require_integer, require_text
from noetl.template.functions.calling import Function
from noetl.template.functions.lists import list_map_items
from noetl.template.limits import Meter
from noetl.template.members import list_elements
from noetl.template.operators import is_truthy
from noetl.template.values import Value, settle
from noetl.template.writing import format_as_text


def _make_case_filter(change: Callable[[str], str], function_name: str) -> Function:
    def change_case(meter: Meter, value: Value) -> str:
        value = format_as_text(meter, value)
        meter.spend_text(len(value))
        return change(value)

    change_case.__name__ = function_name
    return change_case


def _title_case(value: str) -> str:
    words = re.split(r"([-\s({\[<]+)", value)
    return "".join(word[:1].upper() + word[1:].lower() for word in words)


def trim_text(meter: Meter, value: Value, chars: Value = None) -> str:
    value = format_as_text(meter, value)
    meter.spend_text(len(value))
    return str(value.strip(optional_text(chars, "trim")))


def replace_text(
    meter: Meter,
    value: Value,
    old: Value,
    new: Value,
    count: Value = None,
) -> str:
    value = format_as_text(meter, value)
    old = format_as_text(meter, old)
    new = format_as_text(meter, new)
    limit = -1 if count is None else require_integer(count, "replace")
    meter.spend_reading(len(value))
    times = value.count(old)
    if limit >= 0:
        times = min(times, limit)
    growth = max(len(new) - len(old), 0)
    meter.spend_text(len(value) + times * growth)
    return str(value.replace(old, new, limit))


def truncate_text(
    meter: Meter,
    value: Value,
    length: Value = 255,
    killwords: Value = False,
    end: Value = "...",
    leeway: Value = 5,
) -> str:
    value = format_as_text(meter, value)
    end = require_text(end, "truncate")
    limit = require_integer(length, "truncate")
    if limit < len(end):
        raise FailedError(f"truncate needs a length of at least {len(end)}")
    if len(value) <= limit + require_integer(leeway, "truncate"):
        return str(value)
    meter.spend_text(limit)
    start = value[: limit - len(end)]
    if not is_truthy(killwords):
        start = start.rsplit(" ", 1)[0]
    return f"{start}{end}"


def indent_text(
    meter: Meter,
    value: Value,
    width: Value = 4,
    first: Value = False,
    blank: Value = False,
) -> str:
    value = format_as_text(meter, value)
    if isinstance(width, str):
        margin = width
    else:
        columns = max(require_integer(width, "indent"), 0)
        meter.spend_text(columns)
        margin = " " * columns
    meter.spend_reading(len(value))
    line_count = value.count("\n") + 1
    meter.spend_text(len(value) + line_count * len(margin))
    lines = value.split("\n")
    meter.spend_operations(len(lines))
    indented = []
    for number, line in enumerate(lines):
        if number == 0:
            is_indented = is_truthy(first)
        else:
            is_indented = line or is_truthy(blank)
        indented.append(margin + line if is_indented else line)
    return "\n".join(indented)


def count_words(meter: Meter, value: Value) -> int:
    value = require_text(value, "wordcount")
    meter.spend_operations(len(value))
    return sum(1 for _ in re.finditer(r"\w+", value))


def encode_url(meter: Meter, value: Value) -> str:
    value = settle(value)
    if isinstance(value, dict):
        pairs = list_map_items(meter, value)
    elif isinstance(value, list):
        pairs = [_require_pair(entry) for entry in list_elements(meter, value)]
    else:
        return _quote_url_part(meter, value, "/")
    parameters = [
        f"{_quote_url_part(meter, key, '')}={_quote_url_part(meter, part, '')}"
        for key, part in pairs
    ]
    meter.spend_text(sum(map(len, parameters)) + len(parameters))
    return "&".join(parameters)


def _require_pair(value: Value) -> list[Value]:
    value = settle(value)
    if isinstance(value, list) and len(value) == 2:
        return value
    raise FailedError("urlencode needs text, a map, or a list of pairs")


def _quote_url_part(meter: Meter, value: Value, safe: str) -> str:
    value = format_as_text(meter, value)
    meter.spend_text(len(value) * 3)
    return quote_url(value, safe=safe)


def split_text(
    meter: Meter,
    value: Value,
    sep: Value = None,
    maxsplit: Value = -1,
) -> list[Value]:
    value = require_text(value, "split")
    limit = require_integer(maxsplit, "split")
    separator = optional_text(sep, "split")
    if separator == "":
        raise FailedError("split needs a separator that is not empty")
    meter.spend_reading(len(value))
    if separator:
        pieces = value.count(separator) + 1
    else:
        pieces = len(value) // 2 + 1
    if limit >= 0:
        pieces = min(pieces, limit + 1)
    meter.spend_items(pieces)
    meter.spend_text(len(value))
    return list(value.split(separator, limit))


def convert_to_text(meter: Meter, value: Value) -> str:
    return format_as_text(meter, value)


def quote_sql_identifier(meter: Meter, value: Value) -> str:
    """Quote an SQL name. In SQL tasks the tool quotes it instead, by the rules of its database."""
    value = require_text(value, "identifier")
    if not value or "\0" in value:
        raise FailedError("identifier needs a name")
    meter.spend_text(2 * len(value) + 2)
    doubled = value.replace('"', '""')
    return f'"{doubled}"'


def accept_sql(meter: Meter, value: Value) -> str:
    return require_text(value, "sql")
