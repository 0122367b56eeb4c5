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

_STRIP_PIECE_CHARACTERS = 4096
_PIECE_BYTES = 64  # of a short text that a list refers to, without its characters
_QUOTED_BYTES = 8  # of each byte while a URL is quoted
_ASCII_SPACES = " \t\n\r\v\f\x1c\x1d\x1e\x1f"
_SPACES = (
    f"{_ASCII_SPACES}\x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)


def _make_case_filter(
    change: Callable[[str], str], function_name: str, *, is_quick: bool = False
) -> Function:
    def change_case(meter: Meter, value: Value) -> str:
        value = format_as_text(meter, value)
        meter.spend_case_change(value, is_quick)
        return change(value)

    change_case.__name__ = function_name
    return change_case


def convert_to_title(meter: Meter, value: Value) -> str:
    value = format_as_text(meter, value)
    meter.spend_case_change(value)
    meter.spend_memory(_PIECE_BYTES * len(value))
    meter.spend_native(len(value))  # every character may be a word
    words = re.split(r"([-\s({\[<]+)", value)
    return "".join(word[:1].upper() + word[1:].lower() for word in words)


def trim_text(meter: Meter, value: Value, chars: Value = None) -> str:
    value = format_as_text(meter, value)
    return strip_both(meter, value, optional_text(chars, "trim"))


def strip_both(meter: Meter, value: str, chars: str | None) -> str:
    return strip_right(meter, strip_left(meter, value, chars), chars)


def strip_left(meter: Meter, value: str, chars: str | None) -> str:
    """Strip piece by piece: each character that is stripped may be compared with all of `chars`."""
    start = 0
    while start < len(value):
        piece = value[start : start + _STRIP_PIECE_CHARACTERS]
        _spend_stripping(meter, piece, chars)
        rest = piece.lstrip(chars)
        start += len(piece) - len(rest)
        if rest:
            break
    return _cut_text(meter, value, start, len(value))


def strip_right(meter: Meter, value: str, chars: str | None) -> str:
    stop = len(value)
    while stop > 0:
        piece = value[max(stop - _STRIP_PIECE_CHARACTERS, 0) : stop]
        _spend_stripping(meter, piece, chars)
        rest = piece.rstrip(chars)
        stop -= len(piece) - len(rest)
        if rest:
            break
    return _cut_text(meter, value, 0, stop)


def _spend_stripping(meter: Meter, piece: str, chars: str | None) -> None:
    compared = 8
    if chars is not None:
        compared += len(chars)
    meter.spend_native(1 + (len(piece) * compared >> 7))


def _cut_text(meter: Meter, value: str, start: int, stop: int) -> str:
    if start == 0 and stop == len(value):
        return value
    meter.spend_text(stop - start, value.isascii())
    return value[start:stop]


def spend_pieces(meter: Meter, count: int) -> None:
    """Count the making of a list of so many texts. Their characters are counted elsewhere."""
    meter.spend_items(count, _PIECE_BYTES)
    meter.spend_native(count >> 2)


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
    meter.spend_reading(len(value) + len(old))
    times = value.count(old)
    if limit >= 0:
        times = min(times, limit)
    growth = max(len(new) - len(old), 0)
    is_ascii = value.isascii() and new.isascii()
    meter.spend_text(len(value) + times * growth, is_ascii)
    # A single character is found quickly; the search for a longer text begins anew each time.
    meter.spend_native(times >> 4 if len(old) <= 1 else times >> 1)
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
    meter.spend_text(limit, value.isascii())
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
    is_ascii = value.isascii() and margin.isascii()
    meter.spend_text(len(value) + line_count * len(margin), is_ascii)
    spend_pieces(meter, 2 * line_count)
    meter.spend_operations(line_count)
    lines = value.split("\n")
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
    meter.spend_native(1 + (len(value) >> 2))
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
    meter.spend_operations(4 * len(parameters))
    meter.spend_text(sum(map(len, parameters)) + len(parameters))
    return "&".join(parameters)


def _require_pair(value: Value) -> list[Value]:
    value = settle(value)
    if isinstance(value, list) and len(value) == 2:
        return value
    raise FailedError("urlencode needs text, a map, or a list of pairs")


def _quote_url_part(meter: Meter, value: Value, safe: str) -> str:
    value = format_as_text(meter, value)
    size = len(value) if value.isascii() else 4 * len(value)
    meter.spend_text(size * 3)
    meter.spend_memory(_QUOTED_BYTES * size)
    meter.spend_native(4 + (size >> 3))
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
    if separator:
        meter.spend_reading(len(value) + len(separator))
        pieces = value.count(separator) + 1
    else:
        pieces = _count_spaces(meter, value) + 1
    if limit >= 0:
        pieces = min(pieces, limit + 1)
    spend_pieces(meter, pieces)
    meter.spend_text(len(value), value.isascii())
    return list(value.split(separator, limit))


def _count_spaces(meter: Meter, value: str) -> int:
    spaces = _ASCII_SPACES if value.isascii() else _SPACES
    for _ in spaces:
        meter.spend_reading(len(value))
    return sum(map(value.count, spaces))


def convert_to_text(meter: Meter, value: Value) -> str:
    return format_as_text(meter, value)


def quote_sql_identifier(meter: Meter, value: Value) -> str:
    """Quote an SQL name. In SQL tasks the tool quotes it instead, by the rules of its database."""
    value = require_text(value, "identifier")
    if not value or "\0" in value:
        raise FailedError("identifier needs a name")
    meter.spend_text(2 * len(value) + 2, value.isascii())
    doubled = value.replace('"', '""')
    return f'"{doubled}"'


def accept_sql(meter: Meter, value: Value) -> str:
    return require_text(value, "sql")
