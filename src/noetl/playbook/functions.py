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
    SCALARS,
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
    checked,
    compare,
    contains,
    dotted,
    elements,
    equal,
    hint_at_similar_name,
    is_lazy,
    item,
    kind_of,
    length,
    plain,
    scalar_text,
    settle,
    text,
    to_json,
    truth,
)

Function: TypeAlias = Callable[..., Value]

NO_DEFAULT = Undefined("default", "default")


class Seeded(Struct, frozen=True):
    """Functions derived from a seed: the handled event and the template's place.

    Replay repeats them.
    """

    seed: str
    at: str

    def _digest(self, name: str, nth: int) -> bytes:
        return hashlib.sha256(f"{self.seed}\0{name}\0{nth}".encode()).digest()

    def now(self) -> str:
        return self.at

    def uuid(self, nth: int) -> str:
        digits = self._digest("uuid", nth).hex()[:32]
        variant = "89ab"[int(digits[16], 16) % 4]  # of RFC 9562; the 4 below is the version
        return (
            f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:]}"
        )

    def random(self, nth: int) -> float:
        digest = self._digest("random", nth)
        bits = int.from_bytes(digest[:8]) >> 11  # 53 bits, as many as a float has
        return bits / 2.0**53

    def child(self, place: str) -> Seeded:
        return Seeded(f"{self.seed}\0{place}", self.at)


# --- checks of arguments


def _text(value: Value, function_name: str) -> str:
    value = settle(value)
    if isinstance(value, str):
        return value
    raise FailedError(f"{function_name} needs text, not {kind_of(value)}")


def _list(meter: Meter, value: Value, function_name: str) -> list[Value]:
    value = settle(value)
    if isinstance(value, list):
        meter.work(1 + len(value))
        return value
    raise FailedError(f"{function_name} needs a list, not {kind_of(value)}")


def _map(value: Value, function_name: str) -> dict[str, Value]:
    value = settle(value)
    if isinstance(value, dict):
        return value
    raise FailedError(f"{function_name} needs a map, not {kind_of(value)}")


def _count(value: Value, function_name: str) -> int:
    value = settle(value)
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() <= 64:
        return value
    raise FailedError(f"{function_name} needs a whole number, not {kind_of(value)}")


def _positive(value: Value, function_name: str) -> int:
    count = _count(value, function_name)
    if count > 0:
        return count
    raise FailedError(f"{function_name} needs a number above 0")


def _attribute(value: Value, path: Value) -> Value:
    if isinstance(path, bool) or not isinstance(path, (str, int)):
        raise FailedError(f"an attribute is named by text or a position, not {kind_of(path)}")
    return dotted(value, path)


def _of(value: Value, path: Value) -> Value:
    """Return the value to compare, add or join: the item, or its attribute if `path` names one."""
    if path is None:
        return settle(value)
    return settle(_attribute(value, path))


def _optional_text(value: Value, function_name: str) -> str | None:
    return None if value is None else _text(value, function_name)


def _optional_count(value: Value, function_name: str) -> int | None:
    return None if value is None else _count(value, function_name)


# --- text


def _cased(change: Callable[[str], str], function_name: str) -> Function:
    def change_case(meter: Meter, value: Value) -> str:
        value = text(meter, value)
        meter.make_text(len(value))
        return change(value)

    change_case.__name__ = function_name
    return change_case


def _title(value: str) -> str:
    words = re.split(r"([-\s({\[<]+)", value)
    return "".join(word[:1].upper() + word[1:].lower() for word in words)


def trim(meter: Meter, value: Value, chars: Value = None) -> str:
    value = text(meter, value)
    meter.make_text(len(value))
    return str(value.strip(_optional_text(chars, "trim")))


def replace(meter: Meter, value: Value, old: Value, new: Value, count: Value = None) -> str:
    value = text(meter, value)
    old = text(meter, old)
    new = text(meter, new)
    limit = -1 if count is None else _count(count, "replace")
    meter.read(len(value))
    times = value.count(old)
    if limit >= 0:
        times = min(times, limit)
    growth = max(len(new) - len(old), 0)
    meter.make_text(len(value) + times * growth)
    return str(value.replace(old, new, limit))


def truncate(
    meter: Meter,
    value: Value,
    length: Value = 255,
    killwords: Value = False,
    end: Value = "...",
    leeway: Value = 5,
) -> str:
    value = text(meter, value)
    end = _text(end, "truncate")
    limit = _count(length, "truncate")
    if limit < len(end):
        raise FailedError(f"truncate needs a length of at least {len(end)}")
    if len(value) <= limit + _count(leeway, "truncate"):
        return str(value)
    meter.make_text(limit)
    start = value[: limit - len(end)]
    if not truth(killwords):
        start = start.rsplit(" ", 1)[0]
    return f"{start}{end}"


def indent(
    meter: Meter,
    value: Value,
    width: Value = 4,
    first: Value = False,
    blank: Value = False,
) -> str:
    value = text(meter, value)
    if isinstance(width, str):
        margin = width
    else:
        columns = max(_count(width, "indent"), 0)
        meter.make_text(columns)
        margin = " " * columns
    meter.read(len(value))
    line_count = value.count("\n") + 1
    meter.make_text(len(value) + line_count * len(margin))
    lines = value.split("\n")
    meter.work(len(lines))
    indented = []
    for number, line in enumerate(lines):
        if number == 0:
            is_indented = truth(first)
        else:
            is_indented = line or truth(blank)
        indented.append(margin + line if is_indented else line)
    return "\n".join(indented)


def wordcount(meter: Meter, value: Value) -> int:
    value = _text(value, "wordcount")
    meter.work(len(value))
    return sum(1 for _ in re.finditer(r"\w+", value))


def urlencode(meter: Meter, value: Value) -> str:
    value = settle(value)
    if isinstance(value, dict):
        pairs = items(meter, value)
    elif isinstance(value, list):
        pairs = [_pair(entry) for entry in elements(meter, value)]
    else:
        return _url(meter, value, "/")
    parameters = [f"{_url(meter, key, '')}={_url(meter, part, '')}" for key, part in pairs]
    meter.make_text(sum(map(len, parameters)) + len(parameters))
    return "&".join(parameters)


def _pair(value: Value) -> list[Value]:
    value = settle(value)
    if isinstance(value, list) and len(value) == 2:
        return value
    raise FailedError("urlencode needs text, a map, or a list of pairs")


def _url(meter: Meter, value: Value, safe: str) -> str:
    value = text(meter, value)
    meter.make_text(len(value) * 3)
    return quote_url(value, safe=safe)


def split(meter: Meter, value: Value, sep: Value = None, maxsplit: Value = -1) -> list[Value]:
    value = _text(value, "split")
    limit = _count(maxsplit, "split")
    separator = _optional_text(sep, "split")
    if separator == "":
        raise FailedError("split needs a separator that is not empty")
    meter.read(len(value))
    if separator:
        pieces = value.count(separator) + 1
    else:
        pieces = len(value) // 2 + 1
    if limit >= 0:
        pieces = min(pieces, limit + 1)
    meter.make_items(pieces)
    meter.make_text(len(value))
    return list(value.split(separator, limit))


def string(meter: Meter, value: Value) -> str:
    return text(meter, value)


def identifier(meter: Meter, value: Value) -> str:
    """Quote an SQL name. In SQL tasks the tool quotes it instead, by the rules of its database."""
    value = _text(value, "identifier")
    if not value or "\0" in value:
        raise FailedError("identifier needs a name")
    meter.make_text(2 * len(value) + 2)
    doubled = value.replace('"', '""')
    return f'"{doubled}"'


def sql(meter: Meter, value: Value) -> str:
    return _text(value, "sql")


# --- encodings


def tojson(meter: Meter, value: Value, indent: Value = None) -> str:
    return to_json(meter, value, _optional_count(indent, "tojson"))


def fromjson(meter: Meter, value: Value) -> Value:
    value = _text(value, "fromjson")
    meter.make_text(len(value))
    try:
        data = orjson.loads(value)
    except ValueError as exc:  # covers lone surrogates and too deep nesting as well
        reason = str(exc).partition(":")[0]
        raise FailedError(f"fromjson: the text is not JSON: {reason}") from None
    return plain(meter, data)


def _bytes(meter: Meter, value: Value, function_name: str) -> bytes:
    value_text = text(meter, value)
    meter.make_text(2 * len(value_text))
    try:
        return value_text.encode()
    except UnicodeEncodeError:
        raise FailedError(f"{function_name}: the text is not valid Unicode") from None


def b64encode(meter: Meter, value: Value) -> str:
    return base64.b64encode(_bytes(meter, value, "b64encode")).decode()


def b64decode(meter: Meter, value: Value) -> str:
    encoded = _bytes(meter, value, "b64decode")
    try:
        return base64.b64decode(encoded, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        raise FailedError("b64decode: the text is not base64 of text") from None


def sha256(meter: Meter, value: Value) -> str:
    return hashlib.sha256(_bytes(meter, value, "sha256")).hexdigest()


# --- numbers


def absolute(meter: Meter, value: Value) -> Value:
    value = settle(value)
    if isinstance(value, (int, float)):
        return checked(meter, abs(value))
    raise FailedError(f"abs needs a number, not {kind_of(value)}")


def integer(meter: Meter, value: Value, default: Value = 0, base: Value = 10) -> Value:
    value = settle(value)
    if isinstance(value, str) and len(value) > 400:
        raise LimitError("int: the text is too long for a number")
    try:
        if isinstance(value, str):
            return checked(meter, _whole(value, _count(base, "int")))
        if isinstance(value, (int, float)):
            return checked(meter, int(value))
    except (ValueError, OverflowError):
        pass
    return default


def _whole(value: str, base: int) -> int:
    try:
        return int(value, base)
    except ValueError:
        return int(float(value))


def floating(meter: Meter, value: Value, default: Value = 0.0) -> Value:
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


def rounded(meter: Meter, value: Value, precision: Value = 0, method: Value = "common") -> float:
    value = settle(value)
    digits = _count(precision, "round")
    if not isinstance(value, (int, float)):
        raise FailedError(f"round needs a number, not {kind_of(value)}")
    if abs(digits) > 30 or method not in ("common", "ceil", "floor"):
        raise FailedError(
            "round needs a precision of at most 30 and a method common, ceil or floor"
        )
    checked(meter, value)
    if method == "common":
        return float(checked(meter, float(round(value, digits))))
    scale = 10.0**digits
    scaled = checked(meter, value * scale)
    if method == "ceil":
        whole = math.ceil(scaled)
    else:
        whole = math.floor(scaled)
    return float(checked(meter, whole / scale))


def total(meter: Meter, value: Value, attribute: Value = None, start: Value = 0) -> Value:
    result = start
    for entry in elements(meter, value):
        result = add(meter, result, _of(entry, attribute))
    return result


# --- lists and maps


def count(meter: Meter, value: Value) -> int:
    return length(value)


def first(meter: Meter, value: Value) -> Value:
    return _end(value, 0, "first")


def last(meter: Meter, value: Value) -> Value:
    return _end(value, -1, "last")


def _end(value: Value, index: int, function_name: str) -> Value:
    """Return the first (index 0) or last (index -1) item."""
    if isinstance(value, dict):
        keys_in_order = reversed(value) if index else iter(value)
        value = list(islice(keys_in_order, 1))
    if not is_lazy(value):
        value = settle(value)
        if not isinstance(value, (str, list)):
            raise FailedError(f"{function_name} needs a list, not {kind_of(value)}")
    return item(value, index, f"{function_name} item of an empty list")


def join(meter: Meter, value: Value, d: Value = "", attribute: Value = None) -> str:
    separator = text(meter, d)
    entries = elements(meter, value)
    meter.make_text(len(separator) * max(len(entries) - 1, 0))
    texts = []
    for entry in entries:
        entry_text = text(meter, _of(entry, attribute))
        texts.append(entry_text)
        meter.make_text(len(entry_text))
    return separator.join(texts)


def as_list(meter: Meter, value: Value) -> list[Value]:
    return list(elements(meter, value))


def reverse(meter: Meter, value: Value) -> Value:
    value = settle(value)
    if isinstance(value, str):
        meter.make_text(len(value))
        return value[::-1]
    return elements(meter, value)[::-1]


def batch(meter: Meter, value: Value, linecount: Value, fill_with: Value = None) -> list[Value]:
    entries = elements(meter, value)
    size = _positive(linecount, "batch")
    rows = [entries[start : start + size] for start in range(0, len(entries), size)]
    if fill_with is not None and rows:
        meter.make_items(size)
        missing = size - len(rows[-1])
        rows[-1] = rows[-1] + [fill_with] * missing
    return rows


def sliced(meter: Meter, value: Value, slices: Value, fill_with: Value = None) -> list[Value]:
    entries = elements(meter, value)
    slice_count = _positive(slices, "slice")
    meter.make_items(slice_count)
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


def keys(meter: Meter, value: Value) -> list[Value]:
    value = _map(value, "keys")
    meter.make_items(len(value))
    return list(value)


def values(meter: Meter, value: Value) -> list[Value]:
    value = _map(value, "values")
    meter.make_items(len(value))
    return list(value.values())


def items(meter: Meter, value: Value) -> list[Value]:
    value = _map(value, "items")
    meter.make_items(2 * len(value))
    return [[key, entry] for key, entry in value.items()]


def get(meter: Meter, value: Value, key: Value, default: Value = None) -> Value:
    """Return a member or item that may be missing. The key may be computed."""
    if not is_lazy(value):
        value = settle(value)
    if isinstance(value, (str, int, float)):
        raise FailedError(f"get needs a map or a list, not {kind_of(value)}")
    found = item(value, key, "get")
    return default if isinstance(found, Undefined) else found


def pluck(meter: Meter, value: Value, attribute: Value, default: Value = NO_DEFAULT) -> list[Value]:
    attributes = []
    for entry in elements(meter, value):
        found = _attribute(entry, attribute)
        if isinstance(found, Undefined):
            if default is not NO_DEFAULT:
                found = default
            found = settle(found)  # raises if it is undefined
        attributes.append(found)
    return attributes


def dictsort(
    meter: Meter,
    value: Value,
    case_sensitive: Value = False,
    by: Value = "key",
    reverse: Value = False,
) -> list[Value]:
    if by not in ("key", "value"):
        raise FailedError("dictsort sorts by key or value")
    position = 0 if by == "key" else 1
    return sort(meter, items(meter, value), reverse, case_sensitive, position)


# --- order


def _sort_keys(
    meter: Meter,
    entries: list[Value],
    attribute: Value,
    case_sensitive: Value,
) -> list[Value]:
    """Return the key to sort each entry by.

    All are numbers or all are text, so that they compare.
    """
    ignores_case = not truth(case_sensitive)
    sort_keys = []
    kinds = set()
    for entry in entries:
        key = _of(entry, attribute)
        if isinstance(key, str):
            meter.read(len(key))
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
    meter.work(len(entries) * rounds)
    meter.read(rounds * characters)
    return sort_keys


def sort(
    meter: Meter,
    value: Value,
    reverse: Value = False,
    case_sensitive: Value = False,
    attribute: Value = None,
) -> list[Value]:
    entries = elements(meter, value)
    sort_keys = _sort_keys(meter, entries, attribute, case_sensitive)
    order = sorted(range(len(entries)), key=sort_keys.__getitem__, reverse=truth(reverse))
    return [entries[index] for index in order]


def groupby(
    meter: Meter,
    value: Value,
    attribute: Value,
    default: Value = None,
    case_sensitive: Value = False,
) -> list[Value]:
    """Return pairs [key, items], ordered by key."""
    pairs: list[Value] = []
    for entry in elements(meter, value):
        key = _attribute(entry, attribute)
        if isinstance(key, Undefined) and default is not None:
            key = default
        pairs.append([settle(key), entry])
    ignores_case = not truth(case_sensitive)
    groups: list[Value] = []
    last_key: Value = None
    for key, entry in sort(meter, pairs, False, case_sensitive, 0):
        compared_key = key
        if ignores_case and isinstance(key, str):
            compared_key = key.lower()
        if not groups or compared_key != last_key:
            groups.append([key, []])
            last_key = compared_key
        groups[-1][1].append(entry)
    return groups


def unique(
    meter: Meter,
    value: Value,
    case_sensitive: Value = False,
    attribute: Value = None,
) -> list[Value]:
    ignores_case = not truth(case_sensitive)
    seen: set[Value] = set()
    unique_entries = []
    for entry in elements(meter, value):
        key = _of(entry, attribute)
        if isinstance(key, str):
            meter.read(len(key))
            if ignores_case:
                key = key.lower()
        elif type(key) not in SCALARS:
            key = (to_json(meter, key),)
        if key not in seen:
            seen.add(key)
            unique_entries.append(entry)
    return unique_entries


def _extreme(
    meter: Meter,
    value: Value,
    case_sensitive: Value,
    attribute: Value,
    sign: int,
    function_name: str,
) -> Value:
    """Return the smallest (sign -1) or the largest (sign 1) entry."""
    entries = elements(meter, value)
    if not entries:
        return Undefined(f"{function_name} of an empty list", f"{function_name} of an empty list")
    sort_keys = _sort_keys(meter, entries, attribute, case_sensitive)
    best = 0
    for index in range(1, len(entries)):
        if sign * compare(meter, sort_keys[index], sort_keys[best]) > 0:
            best = index
    return entries[best]


def smallest(
    meter: Meter,
    value: Value,
    case_sensitive: Value = False,
    attribute: Value = None,
) -> Value:
    return _extreme(meter, value, case_sensitive, attribute, -1, "min")


def largest(
    meter: Meter,
    value: Value,
    case_sensitive: Value = False,
    attribute: Value = None,
) -> Value:
    return _extreme(meter, value, case_sensitive, attribute, 1, "max")


# --- filters that apply filters and tests


def mapped(meter: Meter, value: Value, *args: Value, **kwargs: Value) -> list[Value]:
    if not args:
        if not kwargs.keys() <= {"attribute", "default"} or "attribute" not in kwargs:
            raise FailedError("map needs the name of a filter, or attribute=")
        return pluck(meter, value, **kwargs)
    name = _text(args[0], "map")
    if name in ("default", "d"):
        raise FailedError("map cannot apply default", hint="map(attribute=..., default=...)")
    apply = named(FILTERS, name, "filter")
    fitting(apply, name, len(args) - 1, tuple(kwargs))
    more = args[1:]
    entries = elements(meter, value)
    return [settle(apply(meter, settle(entry), *more, **kwargs)) for entry in entries]


def _chosen(
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
        name = _text(args[0], "a test")
        test = named(TESTS, name, "test")
        fitting(test, name, len(args) - 1)
    chosen = []
    for entry in elements(meter, value):
        subject = entry if attribute is None else _attribute(entry, attribute)
        if test is None:
            passes = truth(subject)
        elif name in SUBJECT_MAY_BE_UNDEFINED:
            passes = test(meter, subject)
        else:
            meter.work(1)
            passes = test(meter, settle(subject), *args[1:])
        if passes == wanted:
            chosen.append(entry)
    return chosen


def select(meter: Meter, value: Value, *args: Value) -> list[Value]:
    return _chosen(meter, value, None, args, True)


def reject(meter: Meter, value: Value, *args: Value) -> list[Value]:
    return _chosen(meter, value, None, args, False)


def selectattr(meter: Meter, value: Value, attribute: Value, *args: Value) -> list[Value]:
    return _chosen(meter, value, attribute, args, True)


def rejectattr(meter: Meter, value: Value, attribute: Value, *args: Value) -> list[Value]:
    return _chosen(meter, value, attribute, args, False)


def default(meter: Meter, value: Value, default_value: Value = "", boolean: Value = False) -> Value:
    """Only declares the name and the parameters. templates.py evaluates `default`."""
    raise AssertionError("default is a form of the language")


# --- tests


def _ordered(accept: Callable[[int], bool]) -> Function:
    def test_order(meter: Meter, value: Value, other: Value) -> bool:
        return accept(compare(meter, value, other))

    return test_order


def _divisible(meter: Meter, value: Value, by: Value) -> bool:
    value = _count(value, "divisibleby")
    by = _count(by, "divisibleby")
    if by == 0:
        raise FailedError("division by zero")
    return bool(value % by == 0)


def _is(accept: Callable[[Any], bool]) -> Function:
    def test_value(meter: Meter, value: Value) -> bool:
        return accept(value)

    return test_value


def _is_integer(value: Value) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Value) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _equal(meter: Meter, value: Value, other: Value) -> bool:
    return equal(meter, value, other)


def _unequal(meter: Meter, value: Value, other: Value) -> bool:
    return not equal(meter, value, other)


def _within(meter: Meter, value: Value, container: Value) -> bool:
    return contains(meter, container, value)


def _case(accept: Callable[[str], bool], function_name: str) -> Function:
    def test_text(meter: Meter, value: Value) -> bool:
        value = _text(value, function_name)
        meter.read(len(value))
        return accept(value)

    return test_text


def _even(meter: Meter, value: Value) -> bool:
    return _count(value, "even") % 2 == 0


def _odd(meter: Meter, value: Value) -> bool:
    return _count(value, "odd") % 2 == 1


_less = _ordered(lambda sign: sign < 0)
_at_most = _ordered(lambda sign: sign <= 0)
_more = _ordered(lambda sign: sign > 0)
_at_least = _ordered(lambda sign: sign >= 0)

SUBJECT_MAY_BE_UNDEFINED = frozenset({"defined", "undefined"})

TESTS: Mapping[str, Function] = {
    "boolean": _is(lambda value: isinstance(value, bool)),
    "defined": _is(lambda value: not isinstance(value, Undefined)),
    "undefined": _is(lambda value: isinstance(value, Undefined)),
    "none": _is(lambda value: value is None),
    "true": _is(lambda value: value is True),
    "false": _is(lambda value: value is False),
    "integer": _is(_is_integer),
    "float": _is(lambda value: isinstance(value, float)),
    "number": _is(_is_number),
    "string": _is(lambda value: isinstance(value, str)),
    "mapping": _is(lambda value: isinstance(value, dict)),
    "sequence": _is(lambda value: isinstance(value, (list, str))),
    "iterable": _is(lambda value: isinstance(value, (list, str, dict))),
    "lower": _case(str.islower, "lower"),
    "upper": _case(str.isupper, "upper"),
    "even": _even,
    "odd": _odd,
    "divisibleby": _divisible,
    "in": _within,
    **dict.fromkeys(("eq", "equalto", "=="), _equal),
    **dict.fromkeys(("ne", "!="), _unequal),
    **dict.fromkeys(("lt", "lessthan", "<"), _less),
    **dict.fromkeys(("le", "<="), _at_most),
    **dict.fromkeys(("gt", "greaterthan", ">"), _more),
    **dict.fromkeys(("ge", ">="), _at_least),
}

# These read a part of a Lazy. All other filters load its data.
LAZY_FILTERS: frozenset[Function] = frozenset({count, first, last, get})

FILTERS: Mapping[str, Function] = {
    "abs": absolute,
    "b64decode": b64decode,
    "b64encode": b64encode,
    "batch": batch,
    "capitalize": _cased(str.capitalize, "capitalize"),
    "count": count,
    "d": default,
    "default": default,
    "dictsort": dictsort,
    "first": first,
    "float": floating,
    "fromjson": fromjson,
    "get": get,
    "groupby": groupby,
    "identifier": identifier,
    "indent": indent,
    "int": integer,
    "items": items,
    "join": join,
    "keys": keys,
    "last": last,
    "length": count,
    "list": as_list,
    "lower": _cased(str.lower, "lower"),
    "map": mapped,
    "max": largest,
    "min": smallest,
    "pluck": pluck,
    "reject": reject,
    "rejectattr": rejectattr,
    "replace": replace,
    "reverse": reverse,
    "round": rounded,
    "select": select,
    "selectattr": selectattr,
    "sha256": sha256,
    "slice": sliced,
    "sort": sort,
    "split": split,
    "sql": sql,
    "string": string,
    "sum": total,
    "title": _cased(_title, "title"),
    "tojson": tojson,
    "trim": trim,
    "truncate": truncate,
    "unique": unique,
    "upper": _cased(str.upper, "upper"),
    "urlencode": urlencode,
    "values": values,
    "wordcount": wordcount,
}

# Names of Jinja that this language omits, because they read Python attributes, format or escape
# text, or are not repeatable.
LEFT_OUT: Mapping[str, frozenset[str]] = {
    "filter": frozenset(
        {"attr", "center", "e", "escape", "filesizeformat", "forceescape", "format", "pprint"}
    )
    | {"random", "safe", "striptags", "urlize", "wordwrap", "xmlattr"},
    "test": frozenset(("callable", "escaped", "filter", "sameas", "test")),
}


# --- methods of values


def _strip(change: Callable[[str, str | None], str]) -> Function:
    def strip_text(meter: Meter, value: str, chars: Value = None) -> str:
        meter.make_text(len(value))
        return change(value, _optional_text(chars, "strip"))

    return strip_text


def _change(change: Callable[[str], str]) -> Function:
    def change_text(meter: Meter, value: str) -> str:
        meter.make_text(len(value))
        return change(value)

    return change_text


def _ask(question: Callable[[str], bool]) -> Function:
    def ask_text(meter: Meter, value: str) -> bool:
        meter.read(len(value))
        return question(value)

    return ask_text


def _affix(change: Callable[[str, str], str], function_name: str) -> Function:
    def change_affix(meter: Meter, value: str, other: Value) -> str:
        other = _text(other, function_name)
        meter.make_text(len(value))
        return change(value, other)

    return change_affix


def _search(question: Callable[[str, str], Value], function_name: str) -> Function:
    def search_text(meter: Meter, value: str, other: Value) -> Value:
        other = _text(other, function_name)
        meter.read(len(value) + len(other))
        return question(value, other)

    return search_text


def _splitlines(meter: Meter, value: str, keepends: Value = False) -> list[Value]:
    meter.read(len(value))
    meter.make_text(len(value))
    meter.make_items(sum(map(value.count, "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029")) + 1)
    return list(value.splitlines(truth(keepends)))


def _join_method(meter: Meter, value: str, entries: Value) -> str:
    for entry in elements(meter, entries):
        _text(entry, "join")
    return join(meter, entries, value)


def _replace_method(meter: Meter, value: str, old: Value, new: Value, count: Value = -1) -> str:
    old = _text(old, "replace")
    new = _text(new, "replace")
    return replace(meter, value, old, new, count)


def _zfill(meter: Meter, value: str, width: Value) -> str:
    size = _count(width, "zfill")
    meter.make_text(max(size, len(value)))
    return value.zfill(size)


def _get_method(meter: Meter, value: dict[str, Value], key: Value, default: Value = None) -> Value:
    return value.get(_text(key, "get"), default)


def _index(meter: Meter, value: list[Value], wanted: Value) -> int:
    entries = _list(meter, plain(meter, value), "index")
    try:
        return entries.index(plain(meter, wanted))
    except ValueError:
        raise FailedError("index: the list does not have this item") from None


def _occurrences(meter: Meter, value: list[Value], wanted: Value) -> int:
    entries = _list(meter, plain(meter, value), "count")
    return entries.count(plain(meter, wanted))


METHODS: Mapping[type, Mapping[str, Function]] = {
    str: {
        "upper": _change(str.upper),
        "lower": _change(str.lower),
        "title": _change(str.title),
        "capitalize": _change(str.capitalize),
        "strip": _strip(str.strip),
        "lstrip": _strip(str.lstrip),
        "rstrip": _strip(str.rstrip),
        "split": split,
        "splitlines": _splitlines,
        "join": _join_method,
        "startswith": _search(str.startswith, "startswith"),
        "endswith": _search(str.endswith, "endswith"),
        "removeprefix": _affix(str.removeprefix, "removeprefix"),
        "removesuffix": _affix(str.removesuffix, "removesuffix"),
        "replace": _replace_method,
        "find": _search(str.find, "find"),
        "count": _search(str.count, "count"),
        "isdigit": _ask(str.isdigit),
        "isalpha": _ask(str.isalpha),
        "zfill": _zfill,
    },
    dict: {"get": _get_method, "keys": keys, "values": values, "items": items},
    list: {"index": _index, "count": _occurrences},
}
METHOD_NAMES = frozenset(name for methods in METHODS.values() for name in methods)


def method(value: Value, name: str) -> Function | None:
    for kind, methods in METHODS.items():
        if isinstance(value, kind):
            return methods.get(name)
    return None


# --- globals


class Calls(Meter):
    """A meter that also has the `Functions` of one rendering and numbers the calls of them."""

    __slots__ = ("call_count", "functions")

    functions: Functions | None
    call_count: int

    def outside(self, name: str) -> Functions:
        if self.functions is None:
            raise FailedError(f"{name}() is not available here")
        return self.functions

    def nth(self) -> int:
        self.call_count += 1
        return self.call_count - 1


def _now(calls: Calls) -> str:
    return calls.outside("now").now()


def _uuid(calls: Calls) -> str:
    return calls.outside("uuid").uuid(calls.nth())


def _random(calls: Calls) -> float:
    return calls.outside("random").random(calls.nth())


def _range(calls: Calls, start: Value, stop: Value = None, step: Value = 1) -> list[Value]:
    if stop is None:
        start, stop = 0, start
    stride = _count(step, "range")
    if stride == 0:
        raise FailedError("range needs a step that is not 0")
    numbers = range(_count(start, "range"), _count(stop, "range"), stride)
    # len() of a range refuses sizes beyond a machine word, so the size is computed by hand
    direction = 1 if stride > 0 else -1
    size = (numbers.stop - numbers.start + stride - direction) // stride
    calls.make_items(max(0, size))
    return list(numbers)


def _dict(calls: Calls, /, **members: Value) -> dict[str, Value]:
    return members


GLOBALS: Mapping[str, Function] = {
    "range": _range,
    "now": _now,
    "uuid": _uuid,
    "random": _random,
    "dict": _dict,
}
NOT_REPEATABLE = frozenset({"now", "uuid", "random"})


# --- finding and calling


def named(table: Mapping[str, Function], name: str, what: str) -> Function:
    """Return the filter or test of this name. `what` is "filter" or "test"."""
    function = table.get(name)
    if function is not None:
        return function
    if name in LEFT_OUT.get(what, ()):
        raise ForbiddenError(f"the {what} '{name}' is not part of the template language")
    hint = hint_at_similar_name(name, table)
    raise TemplateSyntaxError(f"there is no {what} '{name}'", hint=hint)


@lru_cache(maxsize=1024)
def fitting(
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


def called(function: Function, name: str, *args: Value, **kwargs: Value) -> Value:
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
    "Calls",
    "Function",
    "Seeded",
    "called",
    "fitting",
    "method",
    "named",
    "scalar_text",
]
