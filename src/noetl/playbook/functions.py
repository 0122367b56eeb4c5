"""Filters, tests, methods and globals: everything that a template can call.

Each is a pure function of a meter and plain values. It reports to the meter what it will make or
read before it does so, and refuses values that it does not apply to. The names of the parameters
are part of the language, because templates pass arguments by keyword.

`default`, `defined` and `undefined` accept an undefined subject, so templates.py evaluates them.
They are listed here so that this module has all names.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import math
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from inspect import signature
from itertools import islice
from typing import Any, TypeAlias
from urllib.parse import quote as quote_url

import orjson
from msgspec import Struct

from noetl.playbook.expressions import (
    JSON_SCALAR_TYPES,
    FailedError,
    ForbiddenError,
    Functions,
    LimitError,
    Meter,
    TemplateError,
    TemplateSyntaxError,
    Undefined,
    Value,
    add,
    are_equal,
    check_number,
    compare,
    contains,
    follow_attribute,
    format_as_text,
    get_item,
    hint_at_similar_name,
    is_lazy,
    is_truthy,
    kind_of,
    list_elements,
    measure_length,
    settle,
    to_plain,
    write_json,
    write_scalar,
)

Function: TypeAlias = Callable[..., Value]

NO_DEFAULT = Undefined("default", "default")


class DerivedFunctions(Struct, frozen=True):
    """Functions derived from a seed: the handled event and the template's place.

    Replay repeats them.
    """

    seed: str
    at: str

    def _compute_digest(self, name: str, nth: int) -> bytes:
        return hashlib.sha256(f"{self.seed}\0{name}\0{nth}".encode()).digest()

    def now(self) -> str:
        return self.at

    def uuid(self, nth: int) -> str:
        digits = self._compute_digest("uuid", nth).hex()[:32]
        variant = "89ab"[int(digits[16], 16) % 4]  # of RFC 9562; the 4 below is the version
        return (
            f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:]}"
        )

    def random(self, nth: int) -> float:
        digest = self._compute_digest("random", nth)
        bits = int.from_bytes(digest[:8]) >> 11  # 53 bits, as many as a float has
        return bits / 2.0**53

    def derive_functions(self, place: str) -> DerivedFunctions:
        return DerivedFunctions(f"{self.seed}\0{place}", self.at)


# --- checks of arguments


def _require_text(value: Value, function_name: str) -> str:
    value = settle(value)
    if isinstance(value, str):
        return value
    raise FailedError(f"{function_name} needs text, not {kind_of(value)}")


def _require_list(meter: Meter, value: Value, function_name: str) -> list[Value]:
    value = settle(value)
    if isinstance(value, list):
        meter.spend_operations(1 + len(value))
        return value
    raise FailedError(f"{function_name} needs a list, not {kind_of(value)}")


def _require_map(value: Value, function_name: str) -> dict[str, Value]:
    value = settle(value)
    if isinstance(value, dict):
        return value
    raise FailedError(f"{function_name} needs a map, not {kind_of(value)}")


def _require_integer(value: Value, function_name: str) -> int:
    value = settle(value)
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() <= 64:
        return value
    raise FailedError(f"{function_name} needs a whole number, not {kind_of(value)}")


def _require_positive(value: Value, function_name: str) -> int:
    count = _require_integer(value, function_name)
    if count > 0:
        return count
    raise FailedError(f"{function_name} needs a number above 0")


def _read_attribute(value: Value, path: Value) -> Value:
    if isinstance(path, bool) or not isinstance(path, (str, int)):
        raise FailedError(f"an attribute is named by text or a position, not {kind_of(path)}")
    return follow_attribute(value, path)


def _read_operand(value: Value, path: Value) -> Value:
    """Return the value to compare, add or join: the item, or its attribute if `path` names one."""
    if path is None:
        return settle(value)
    return settle(_read_attribute(value, path))


def _optional_text(value: Value, function_name: str) -> str | None:
    return None if value is None else _require_text(value, function_name)


def _optional_integer(value: Value, function_name: str) -> int | None:
    return None if value is None else _require_integer(value, function_name)


# --- text


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
    return str(value.strip(_optional_text(chars, "trim")))


def replace_text(meter: Meter, value: Value, old: Value, new: Value, count: Value = None) -> str:
    value = format_as_text(meter, value)
    old = format_as_text(meter, old)
    new = format_as_text(meter, new)
    limit = -1 if count is None else _require_integer(count, "replace")
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
    end = _require_text(end, "truncate")
    limit = _require_integer(length, "truncate")
    if limit < len(end):
        raise FailedError(f"truncate needs a length of at least {len(end)}")
    if len(value) <= limit + _require_integer(leeway, "truncate"):
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
        columns = max(_require_integer(width, "indent"), 0)
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
    value = _require_text(value, "wordcount")
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


def split_text(meter: Meter, value: Value, sep: Value = None, maxsplit: Value = -1) -> list[Value]:
    value = _require_text(value, "split")
    limit = _require_integer(maxsplit, "split")
    separator = _optional_text(sep, "split")
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
    value = _require_text(value, "identifier")
    if not value or "\0" in value:
        raise FailedError("identifier needs a name")
    meter.spend_text(2 * len(value) + 2)
    doubled = value.replace('"', '""')
    return f'"{doubled}"'


def accept_sql(meter: Meter, value: Value) -> str:
    return _require_text(value, "sql")


# --- encodings


def encode_json(meter: Meter, value: Value, indent: Value = None) -> str:
    return write_json(meter, value, _optional_integer(indent, "tojson"))


def decode_json(meter: Meter, value: Value) -> Value:
    value = _require_text(value, "fromjson")
    meter.spend_text(len(value))
    try:
        data = orjson.loads(value)
    except ValueError as exc:  # covers lone surrogates and too deep nesting as well
        reason = str(exc).partition(":")[0]
        raise FailedError(f"fromjson: the text is not JSON: {reason}") from None
    return to_plain(meter, data)


def _encode_text(meter: Meter, value: Value, function_name: str) -> bytes:
    value_text = format_as_text(meter, value)
    meter.spend_text(2 * len(value_text))
    try:
        return value_text.encode()
    except UnicodeEncodeError:
        raise FailedError(f"{function_name}: the text is not valid Unicode") from None


def encode_base64(meter: Meter, value: Value) -> str:
    return base64.b64encode(_encode_text(meter, value, "b64encode")).decode()


def decode_base64(meter: Meter, value: Value) -> str:
    encoded = _encode_text(meter, value, "b64decode")
    try:
        return base64.b64decode(encoded, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        raise FailedError("b64decode: the text is not base64 of text") from None


def hash_sha256(meter: Meter, value: Value) -> str:
    return hashlib.sha256(_encode_text(meter, value, "sha256")).hexdigest()


# --- numbers


def compute_absolute(meter: Meter, value: Value) -> Value:
    value = settle(value)
    if isinstance(value, (int, float)):
        return check_number(meter, abs(value))
    raise FailedError(f"abs needs a number, not {kind_of(value)}")


def convert_to_integer(meter: Meter, value: Value, default: Value = 0, base: Value = 10) -> Value:
    value = settle(value)
    if isinstance(value, str) and len(value) > 400:
        raise LimitError("int: the text is too long for a number")
    try:
        if isinstance(value, str):
            return check_number(meter, _parse_whole(value, _require_integer(base, "int")))
        if isinstance(value, (int, float)):
            return check_number(meter, int(value))
    except (ValueError, OverflowError):
        pass
    return default


def _parse_whole(value: str, base: int) -> int:
    try:
        return int(value, base)
    except ValueError:
        return int(float(value))


def convert_to_float(meter: Meter, value: Value, default: Value = 0.0) -> Value:
    value = settle(value)
    if isinstance(value, str) and len(value) > 400:
        raise LimitError("float: the text is too long for a number")
    if not isinstance(value, (str, int, float)):
        return default
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return default
    if not math.isfinite(number):
        return default
    return number


def round_number(
    meter: Meter, value: Value, precision: Value = 0, method: Value = "common"
) -> float:
    value = settle(value)
    digits = _require_integer(precision, "round")
    if not isinstance(value, (int, float)):
        raise FailedError(f"round needs a number, not {kind_of(value)}")
    if abs(digits) > 30 or method not in ("common", "ceil", "floor"):
        raise FailedError(
            "round needs a precision of at most 30 and a method common, ceil or floor"
        )
    check_number(meter, value)
    if method == "common":
        return float(check_number(meter, float(round(value, digits))))
    scale = 10.0**digits
    scaled = check_number(meter, value * scale)
    if method == "ceil":
        whole = math.ceil(scaled)
    else:
        whole = math.floor(scaled)
    return float(check_number(meter, whole / scale))


def sum_items(meter: Meter, value: Value, attribute: Value = None, start: Value = 0) -> Value:
    result = start
    for entry in list_elements(meter, value):
        result = add(meter, result, _read_operand(entry, attribute))
    return result


# --- lists and maps


def count_items(meter: Meter, value: Value) -> int:
    return measure_length(value)


def get_first(meter: Meter, value: Value) -> Value:
    return _get_end(value, 0, "first")


def get_last(meter: Meter, value: Value) -> Value:
    return _get_end(value, -1, "last")


def _get_end(value: Value, index: int, function_name: str) -> Value:
    """Return the first (index 0) or last (index -1) item."""
    if isinstance(value, dict):
        keys_in_order = reversed(value) if index else iter(value)
        value = list(islice(keys_in_order, 1))
    if not is_lazy(value):
        value = settle(value)
        if not isinstance(value, (str, list)):
            raise FailedError(f"{function_name} needs a list, not {kind_of(value)}")
    return get_item(value, index, f"{function_name} item of an empty list")


def join_items(meter: Meter, value: Value, d: Value = "", attribute: Value = None) -> str:
    separator = format_as_text(meter, d)
    entries = list_elements(meter, value)
    meter.spend_text(len(separator) * max(len(entries) - 1, 0))
    texts = []
    for entry in entries:
        entry_text = format_as_text(meter, _read_operand(entry, attribute))
        texts.append(entry_text)
        meter.spend_text(len(entry_text))
    return separator.join(texts)


def convert_to_list(meter: Meter, value: Value) -> list[Value]:
    return list(list_elements(meter, value))


def reverse_items(meter: Meter, value: Value) -> Value:
    value = settle(value)
    if isinstance(value, str):
        meter.spend_text(len(value))
        return value[::-1]
    return list_elements(meter, value)[::-1]


def split_into_batches(
    meter: Meter, value: Value, linecount: Value, fill_with: Value = None
) -> list[Value]:
    entries = list_elements(meter, value)
    size = _require_positive(linecount, "batch")
    rows = [entries[start : start + size] for start in range(0, len(entries), size)]
    if fill_with is not None and rows:
        meter.spend_items(size)
        missing = size - len(rows[-1])
        rows[-1] = rows[-1] + [fill_with] * missing
    return rows


def split_into_slices(
    meter: Meter, value: Value, slices: Value, fill_with: Value = None
) -> list[Value]:
    entries = list_elements(meter, value)
    slice_count = _require_positive(slices, "slice")
    meter.spend_items(slice_count)
    min_size, longer_slices = divmod(len(entries), slice_count)
    made = []
    start = 0
    for number in range(slice_count):
        size = min_size + (number < longer_slices)
        part = entries[start : start + size]
        start += size
        if fill_with is not None and longer_slices and number >= longer_slices:
            part.append(fill_with)
        made.append(part)
    return made


def list_map_keys(meter: Meter, value: Value) -> list[Value]:
    value = _require_map(value, "keys")
    meter.spend_items(len(value))
    return list(value)


def list_map_values(meter: Meter, value: Value) -> list[Value]:
    value = _require_map(value, "values")
    meter.spend_items(len(value))
    return list(value.values())


def list_map_items(meter: Meter, value: Value) -> list[Value]:
    value = _require_map(value, "items")
    meter.spend_items(2 * len(value))
    return [[key, entry] for key, entry in value.items()]


def get_or_default(meter: Meter, value: Value, key: Value, default: Value = None) -> Value:
    """Return a member or item that may be missing. The key may be computed."""
    if not is_lazy(value):
        value = settle(value)
    if isinstance(value, (str, int, float)):
        raise FailedError(f"get needs a map or a list, not {kind_of(value)}")
    found = get_item(value, key, "get")
    return default if isinstance(found, Undefined) else found


def pluck_attribute(
    meter: Meter, value: Value, attribute: Value, default: Value = NO_DEFAULT
) -> list[Value]:
    attributes = []
    for entry in list_elements(meter, value):
        found = _read_attribute(entry, attribute)
        if isinstance(found, Undefined):
            if default is not NO_DEFAULT:
                found = default
            found = settle(found)  # raises if it is undefined
        attributes.append(found)
    return attributes


def sort_map(
    meter: Meter,
    value: Value,
    case_sensitive: Value = False,
    by: Value = "key",
    reverse: Value = False,
) -> list[Value]:
    if by not in ("key", "value"):
        raise FailedError("dictsort sorts by key or value")
    position = 0 if by == "key" else 1
    return sort_items(meter, list_map_items(meter, value), reverse, case_sensitive, position)


# --- order


def _compute_sort_keys(
    meter: Meter,
    entries: list[Value],
    attribute: Value,
    case_sensitive: Value,
) -> list[Value]:
    """Return the key to sort each entry by.

    All are numbers or all are text, so that they compare.
    """
    ignores_case = not is_truthy(case_sensitive)
    sort_keys = []
    kinds = set()
    for entry in entries:
        key = _read_operand(entry, attribute)
        if isinstance(key, str):
            meter.spend_reading(len(key))
            kinds.add("text")
            if ignores_case:
                key = key.lower()
        else:
            kinds.add(kind_of(key))
        sort_keys.append(key)
    if not (kinds <= {"text"} or kinds <= {"a number", "a bool"}):
        raise FailedError(f"{' and '.join(sorted(kinds))} have no order")
    rounds = len(entries).bit_length()
    characters = sum(len(key) for key in sort_keys if isinstance(key, str))
    meter.spend_operations(len(entries) * rounds)
    meter.spend_reading(rounds * characters)
    return sort_keys


def sort_items(
    meter: Meter,
    value: Value,
    reverse: Value = False,
    case_sensitive: Value = False,
    attribute: Value = None,
) -> list[Value]:
    entries = list_elements(meter, value)
    sort_keys = _compute_sort_keys(meter, entries, attribute, case_sensitive)
    order = sorted(range(len(entries)), key=sort_keys.__getitem__, reverse=is_truthy(reverse))
    return [entries[index] for index in order]


def group_items(
    meter: Meter,
    value: Value,
    attribute: Value,
    default: Value = None,
    case_sensitive: Value = False,
) -> list[Value]:
    """Return pairs [key, items], ordered by key."""
    pairs: list[Value] = []
    for entry in list_elements(meter, value):
        key = _read_attribute(entry, attribute)
        if isinstance(key, Undefined) and default is not None:
            key = default
        pairs.append([settle(key), entry])
    ignores_case = not is_truthy(case_sensitive)
    groups: list[Value] = []
    last_key: Value = None
    for key, entry in sort_items(meter, pairs, False, case_sensitive, 0):
        compared_key = key
        if ignores_case and isinstance(key, str):
            compared_key = key.lower()
        if not groups or compared_key != last_key:
            groups.append([key, []])
            last_key = compared_key
        groups[-1][1].append(entry)
    return groups


def remove_duplicates(
    meter: Meter,
    value: Value,
    case_sensitive: Value = False,
    attribute: Value = None,
) -> list[Value]:
    ignores_case = not is_truthy(case_sensitive)
    seen: set[Value] = set()
    unique_entries = []
    for entry in list_elements(meter, value):
        key = _read_operand(entry, attribute)
        if isinstance(key, str):
            meter.spend_reading(len(key))
            if ignores_case:
                key = key.lower()
        elif type(key) not in JSON_SCALAR_TYPES:
            key = (write_json(meter, key),)
        if key not in seen:
            seen.add(key)
            unique_entries.append(entry)
    return unique_entries


def _find_extreme(
    meter: Meter,
    value: Value,
    case_sensitive: Value,
    attribute: Value,
    sign: int,
    function_name: str,
) -> Value:
    """Return the smallest (sign -1) or the largest (sign 1) entry."""
    entries = list_elements(meter, value)
    if not entries:
        return Undefined(f"{function_name} of an empty list", f"{function_name} of an empty list")
    sort_keys = _compute_sort_keys(meter, entries, attribute, case_sensitive)
    best = 0
    for index in range(1, len(entries)):
        if sign * compare(meter, sort_keys[index], sort_keys[best]) > 0:
            best = index
    return entries[best]


def find_smallest(
    meter: Meter,
    value: Value,
    case_sensitive: Value = False,
    attribute: Value = None,
) -> Value:
    return _find_extreme(meter, value, case_sensitive, attribute, -1, "min")


def find_largest(
    meter: Meter,
    value: Value,
    case_sensitive: Value = False,
    attribute: Value = None,
) -> Value:
    return _find_extreme(meter, value, case_sensitive, attribute, 1, "max")


# --- filters that apply filters and tests


def map_items(meter: Meter, value: Value, *args: Value, **kwargs: Value) -> list[Value]:
    if not args:
        if not kwargs.keys() <= {"attribute", "default"} or "attribute" not in kwargs:
            raise FailedError("map needs the name of a filter, or attribute=")
        return pluck_attribute(meter, value, **kwargs)
    name = _require_text(args[0], "map")
    if name in ("default", "d"):
        raise FailedError("map cannot apply default", hint="map(attribute=..., default=...)")
    apply = find_function(FILTERS, name, "filter")
    check_arguments(apply, name, len(args) - 1, tuple(kwargs))
    more = args[1:]
    entries = list_elements(meter, value)
    return [settle(apply(meter, settle(entry), *more, **kwargs)) for entry in entries]


def _choose_items(
    meter: Meter,
    value: Value,
    attribute: Value,
    args: tuple[Value, ...],
    wanted: bool,
) -> list[Value]:
    """Return the entries for which the test (by default: truth) gives `wanted`."""
    name: str | None = None
    test: Function | None = None
    if args:
        name = _require_text(args[0], "a test")
        test = find_function(TESTS, name, "test")
        check_arguments(test, name, len(args) - 1)
    chosen = []
    for entry in list_elements(meter, value):
        subject = entry if attribute is None else _read_attribute(entry, attribute)
        if test is None:
            passes = is_truthy(subject)
        elif name in SUBJECT_MAY_BE_UNDEFINED:
            passes = test(meter, subject)
        else:
            meter.spend_operations(1)
            passes = test(meter, settle(subject), *args[1:])
        if passes == wanted:
            chosen.append(entry)
    return chosen


def select_items(meter: Meter, value: Value, *args: Value) -> list[Value]:
    return _choose_items(meter, value, None, args, True)


def reject_items(meter: Meter, value: Value, *args: Value) -> list[Value]:
    return _choose_items(meter, value, None, args, False)


def select_by_attribute(meter: Meter, value: Value, attribute: Value, *args: Value) -> list[Value]:
    return _choose_items(meter, value, attribute, args, True)


def reject_by_attribute(meter: Meter, value: Value, attribute: Value, *args: Value) -> list[Value]:
    return _choose_items(meter, value, attribute, args, False)


def declare_default(
    meter: Meter, value: Value, default_value: Value = "", boolean: Value = False
) -> Value:
    """Only declares the name and the parameters. templates.py evaluates `default`."""
    raise AssertionError("default is a form of the language")


# --- tests


def _make_order_test(accept: Callable[[int], bool]) -> Function:
    def test_order(meter: Meter, value: Value, other: Value) -> bool:
        return accept(compare(meter, value, other))

    return test_order


def _test_divisible(meter: Meter, value: Value, by: Value) -> bool:
    value = _require_integer(value, "divisibleby")
    by = _require_integer(by, "divisibleby")
    if by == 0:
        raise FailedError("division by zero")
    return bool(value % by == 0)


def _make_value_test(accept: Callable[[Any], bool]) -> Function:
    def test_value(meter: Meter, value: Value) -> bool:
        return accept(value)

    return test_value


def _is_integer(value: Value) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Value) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _test_equal(meter: Meter, value: Value, other: Value) -> bool:
    return are_equal(meter, value, other)


def _test_unequal(meter: Meter, value: Value, other: Value) -> bool:
    return not are_equal(meter, value, other)


def _test_contained(meter: Meter, value: Value, container: Value) -> bool:
    return contains(meter, container, value)


def _make_case_test(accept: Callable[[str], bool], function_name: str) -> Function:
    def test_text(meter: Meter, value: Value) -> bool:
        value = _require_text(value, function_name)
        meter.spend_reading(len(value))
        return accept(value)

    return test_text


def _test_even(meter: Meter, value: Value) -> bool:
    return _require_integer(value, "even") % 2 == 0


def _test_odd(meter: Meter, value: Value) -> bool:
    return _require_integer(value, "odd") % 2 == 1


_less = _make_order_test(lambda sign: sign < 0)
_at_most = _make_order_test(lambda sign: sign <= 0)
_more = _make_order_test(lambda sign: sign > 0)
_at_least = _make_order_test(lambda sign: sign >= 0)

SUBJECT_MAY_BE_UNDEFINED = frozenset({"defined", "undefined"})

TESTS: Mapping[str, Function] = {
    "boolean": _make_value_test(lambda value: isinstance(value, bool)),
    "defined": _make_value_test(lambda value: not isinstance(value, Undefined)),
    "undefined": _make_value_test(lambda value: isinstance(value, Undefined)),
    "none": _make_value_test(lambda value: value is None),
    "true": _make_value_test(lambda value: value is True),
    "false": _make_value_test(lambda value: value is False),
    "integer": _make_value_test(_is_integer),
    "float": _make_value_test(lambda value: isinstance(value, float)),
    "number": _make_value_test(_is_number),
    "string": _make_value_test(lambda value: isinstance(value, str)),
    "mapping": _make_value_test(lambda value: isinstance(value, dict)),
    "sequence": _make_value_test(lambda value: isinstance(value, (list, str))),
    "iterable": _make_value_test(lambda value: isinstance(value, (list, str, dict))),
    "lower": _make_case_test(str.islower, "lower"),
    "upper": _make_case_test(str.isupper, "upper"),
    "even": _test_even,
    "odd": _test_odd,
    "divisibleby": _test_divisible,
    "in": _test_contained,
    **dict.fromkeys(("eq", "equalto", "=="), _test_equal),
    **dict.fromkeys(("ne", "!="), _test_unequal),
    **dict.fromkeys(("lt", "lessthan", "<"), _less),
    **dict.fromkeys(("le", "<="), _at_most),
    **dict.fromkeys(("gt", "greaterthan", ">"), _more),
    **dict.fromkeys(("ge", ">="), _at_least),
}

# These read a part of a Lazy. All other filters load its data.
LAZY_FILTERS: frozenset[Function] = frozenset({count_items, get_first, get_last, get_or_default})

FILTERS: Mapping[str, Function] = {
    "abs": compute_absolute,
    "b64decode": decode_base64,
    "b64encode": encode_base64,
    "batch": split_into_batches,
    "capitalize": _make_case_filter(str.capitalize, "capitalize"),
    "count": count_items,
    "d": declare_default,
    "default": declare_default,
    "dictsort": sort_map,
    "first": get_first,
    "float": convert_to_float,
    "fromjson": decode_json,
    "get": get_or_default,
    "groupby": group_items,
    "identifier": quote_sql_identifier,
    "indent": indent_text,
    "int": convert_to_integer,
    "items": list_map_items,
    "join": join_items,
    "keys": list_map_keys,
    "last": get_last,
    "length": count_items,
    "list": convert_to_list,
    "lower": _make_case_filter(str.lower, "lower"),
    "map": map_items,
    "max": find_largest,
    "min": find_smallest,
    "pluck": pluck_attribute,
    "reject": reject_items,
    "rejectattr": reject_by_attribute,
    "replace": replace_text,
    "reverse": reverse_items,
    "round": round_number,
    "select": select_items,
    "selectattr": select_by_attribute,
    "sha256": hash_sha256,
    "slice": split_into_slices,
    "sort": sort_items,
    "split": split_text,
    "sql": accept_sql,
    "string": convert_to_text,
    "sum": sum_items,
    "title": _make_case_filter(_title_case, "title"),
    "tojson": encode_json,
    "trim": trim_text,
    "truncate": truncate_text,
    "unique": remove_duplicates,
    "upper": _make_case_filter(str.upper, "upper"),
    "urlencode": encode_url,
    "values": list_map_values,
    "wordcount": count_words,
}

# Names of Jinja that this language omits, because they read Python attributes, format or escape
# text, or are not repeatable.
OMITTED_NAMES: Mapping[str, frozenset[str]] = {
    "filter": frozenset(
        {"attr", "center", "e", "escape", "filesizeformat", "forceescape", "format", "pprint"}
    )
    | {"random", "safe", "striptags", "urlize", "wordwrap", "xmlattr"},
    "test": frozenset(("callable", "escaped", "filter", "sameas", "test")),
}


# --- methods of values


def _make_strip_method(change: Callable[[str, str | None], str]) -> Function:
    def strip_text(meter: Meter, value: str, chars: Value = None) -> str:
        meter.spend_text(len(value))
        return change(value, _optional_text(chars, "strip"))

    return strip_text


def _make_change_method(change: Callable[[str], str]) -> Function:
    def change_text(meter: Meter, value: str) -> str:
        meter.spend_text(len(value))
        return change(value)

    return change_text


def _make_question_method(question: Callable[[str], bool]) -> Function:
    def ask_text(meter: Meter, value: str) -> bool:
        meter.spend_reading(len(value))
        return question(value)

    return ask_text


def _make_affix_method(change: Callable[[str, str], str], function_name: str) -> Function:
    def change_affix(meter: Meter, value: str, other: Value) -> str:
        other = _require_text(other, function_name)
        meter.spend_text(len(value))
        return change(value, other)

    return change_affix


def _make_search_method(question: Callable[[str, str], Value], function_name: str) -> Function:
    def search_text(meter: Meter, value: str, other: Value) -> Value:
        other = _require_text(other, function_name)
        meter.spend_reading(len(value) + len(other))
        return question(value, other)

    return search_text


def _split_lines(meter: Meter, value: str, keepends: Value = False) -> list[Value]:
    meter.spend_reading(len(value))
    meter.spend_text(len(value))
    meter.spend_items(sum(map(value.count, "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029")) + 1)
    return list(value.splitlines(is_truthy(keepends)))


def _join_method(meter: Meter, value: str, entries: Value) -> str:
    for entry in list_elements(meter, entries):
        _require_text(entry, "join")
    return join_items(meter, entries, value)


def _replace_method(meter: Meter, value: str, old: Value, new: Value, count: Value = -1) -> str:
    old = _require_text(old, "replace")
    new = _require_text(new, "replace")
    return replace_text(meter, value, old, new, count)


def _pad_with_zeros(meter: Meter, value: str, width: Value) -> str:
    size = _require_integer(width, "zfill")
    meter.spend_text(max(size, len(value)))
    return value.zfill(size)


def _get_method(meter: Meter, value: dict[str, Value], key: Value, default: Value = None) -> Value:
    return value.get(_require_text(key, "get"), default)


def _find_index(meter: Meter, value: list[Value], wanted: Value) -> int:
    entries = _require_list(meter, to_plain(meter, value), "index")
    try:
        return entries.index(to_plain(meter, wanted))
    except ValueError:
        raise FailedError("index: the list does not have this item") from None


def _count_occurrences(meter: Meter, value: list[Value], wanted: Value) -> int:
    entries = _require_list(meter, to_plain(meter, value), "count")
    return entries.count(to_plain(meter, wanted))


METHODS: Mapping[type, Mapping[str, Function]] = {
    str: {
        "upper": _make_change_method(str.upper),
        "lower": _make_change_method(str.lower),
        "title": _make_change_method(str.title),
        "capitalize": _make_change_method(str.capitalize),
        "strip": _make_strip_method(str.strip),
        "lstrip": _make_strip_method(str.lstrip),
        "rstrip": _make_strip_method(str.rstrip),
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


# --- globals


class CallMeter(Meter):
    """A meter that also has the `Functions` of one rendering and numbers the calls of them."""

    __slots__ = ("call_count", "functions")

    functions: Functions | None
    call_count: int

    def require_functions(self, name: str) -> Functions:
        if self.functions is None:
            raise FailedError(f"{name}() is not available here")
        return self.functions

    def next_call_number(self) -> int:
        self.call_count += 1
        return self.call_count - 1


def _call_now(calls: CallMeter) -> str:
    return calls.require_functions("now").now()


def _call_uuid(calls: CallMeter) -> str:
    return calls.require_functions("uuid").uuid(calls.next_call_number())


def _call_random(calls: CallMeter) -> float:
    return calls.require_functions("random").random(calls.next_call_number())


def _make_range(calls: CallMeter, start: Value, stop: Value = None, step: Value = 1) -> list[Value]:
    if stop is None:
        start, stop = 0, start
    stride = _require_integer(step, "range")
    if stride == 0:
        raise FailedError("range needs a step that is not 0")
    numbers = range(_require_integer(start, "range"), _require_integer(stop, "range"), stride)
    # len() of a range refuses sizes beyond a machine word, so the size is computed by hand
    direction = 1 if stride > 0 else -1
    size = (numbers.stop - numbers.start + stride - direction) // stride
    calls.spend_items(max(0, size))
    return list(numbers)


def _make_dict(calls: CallMeter, /, **members: Value) -> dict[str, Value]:
    return members


GLOBALS: Mapping[str, Function] = {
    "range": _make_range,
    "now": _call_now,
    "uuid": _call_uuid,
    "random": _call_random,
    "dict": _make_dict,
}
NOT_REPEATABLE = frozenset({"now", "uuid", "random"})


# --- finding and calling


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


__all__ = [
    "FILTERS",
    "GLOBALS",
    "METHODS",
    "METHOD_NAMES",
    "NOT_REPEATABLE",
    "TESTS",
    "CallMeter",
    "DerivedFunctions",
    "Function",
    "call_template_function",
    "check_arguments",
    "find_function",
    "find_method",
    "write_scalar",
]
