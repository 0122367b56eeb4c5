"""Filters, tests, methods and globals that templates may call: all of them, there is no other way to reach code.

Each is a pure function of a meter and plain values. It says what it will make or walk before it does, and refuses
values it does not apply to. `default`, `defined` and `undefined` are forms of the language rather than functions (their
subject may be undefined), so templates.py evaluates them; they are listed here so that names are known in one place.
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
    is_lazy,
    item,
    kind_of,
    length,
    plain,
    scalar_text,
    settle,
    suggest,
    text,
    to_json,
    truth,
)

Function: TypeAlias = Callable[..., Value]

NO_DEFAULT = Undefined("default", "default")


class Seeded(Struct, frozen=True):
    """Functions derived from a seed (the event being handled and the place of the template): replay gives the same."""

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
        return (int.from_bytes(self._digest("random", nth)[:8]) >> 11) / 2.0**53

    def child(self, place: str) -> Seeded:
        return Seeded(f"{self.seed}\0{place}", self.at)


# --- checks of arguments


def _text(value: Value, who: str) -> str:
    value = settle(value)
    if isinstance(value, str):
        return value
    raise FailedError(f"{who} needs text, not {kind_of(value)}")


def _list(meter: Meter, value: Value, who: str) -> list[Value]:
    value = settle(value)
    if isinstance(value, list):
        meter.work(1 + len(value))
        return value
    raise FailedError(f"{who} needs a list, not {kind_of(value)}")


def _map(value: Value, who: str) -> dict[str, Value]:
    value = settle(value)
    if isinstance(value, dict):
        return value
    raise FailedError(f"{who} needs a map, not {kind_of(value)}")


def _count(value: Value, who: str) -> int:
    value = settle(value)
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() <= 64:
        return value
    raise FailedError(f"{who} needs a whole number, not {kind_of(value)}")


def _positive(value: Value, who: str) -> int:
    if (count := _count(value, who)) > 0:
        return count
    raise FailedError(f"{who} needs a number above 0")


def _attribute(value: Value, path: Value) -> Value:
    if isinstance(path, bool) or not isinstance(path, (str, int)):
        raise FailedError(f"an attribute is named by text or a position, not {kind_of(path)}")
    return dotted(value, path)


def _of(value: Value, path: Value) -> Value:
    """The value to compare, add or join: the item, or its attribute when one is named."""
    return settle(value if path is None else _attribute(value, path))


# --- text


def _cased(change: Callable[[str], str], who: str) -> Function:
    def apply(meter: Meter, value: Value) -> str:
        value = text(meter, value)
        meter.make_text(len(value))
        return change(value)

    apply.__name__ = who
    return apply


def _title(value: str) -> str:
    return "".join(
        word[:1].upper() + word[1:].lower() for word in re.split(r"([-\s({\[<]+)", value)
    )


def trim(meter: Meter, value: Value, chars: Value = None) -> str:
    value = text(meter, value)
    meter.make_text(len(value))
    return str(value.strip(None if chars is None else _text(chars, "trim")))


def replace(meter: Meter, value: Value, old: Value, new: Value, count: Value = None) -> str:
    value, old, new = text(meter, value), text(meter, old), text(meter, new)
    limit = -1 if count is None else _count(count, "replace")
    meter.read(len(value))
    found = value.count(old)
    times = found if limit < 0 else min(found, limit)
    meter.make_text(len(value) + times * max(len(new) - len(old), 0))
    return str(value.replace(old, new, limit))


def truncate(
    meter: Meter,
    value: Value,
    length: Value = 255,
    killwords: Value = False,
    end: Value = "...",
    leeway: Value = 5,
) -> str:
    value, end = text(meter, value), _text(end, "truncate")
    limit = _count(length, "truncate")
    if limit < len(end):
        raise FailedError(f"truncate needs a length of at least {len(end)}")
    if len(value) <= limit + _count(leeway, "truncate"):
        return str(value)
    meter.make_text(limit)
    kept = value[: limit - len(end)]
    return f"{kept if truth(killwords) else kept.rsplit(' ', 1)[0]}{end}"


def indent(
    meter: Meter, value: Value, width: Value = 4, first: Value = False, blank: Value = False
) -> str:
    value = text(meter, value)
    if isinstance(width, str):
        margin = width
    else:
        columns = max(_count(width, "indent"), 0)
        meter.make_text(columns)
        margin = " " * columns
    meter.read(len(value))
    meter.make_text(len(value) + (value.count("\n") + 1) * len(margin))
    lines = value.split("\n")
    meter.work(len(lines))
    rest = [margin + line if line or truth(blank) else line for line in lines[1:]]
    return "\n".join([margin + lines[0] if truth(first) else lines[0], *rest])


def wordcount(meter: Meter, value: Value) -> int:
    value = _text(value, "wordcount")
    meter.work(len(value))
    return sum(1 for _ in re.finditer(r"\w+", value))


def urlencode(meter: Meter, value: Value) -> str:
    value = settle(value)
    if isinstance(value, (list, dict)):
        pairs = (
            items(meter, value)
            if isinstance(value, dict)
            else [_pair(entry) for entry in elements(meter, value)]
        )
        made = [f"{_url(meter, key, '')}={_url(meter, part, '')}" for key, part in pairs]
        meter.make_text(sum(map(len, made)) + len(made))
        return "&".join(made)
    return _url(meter, value, "/")


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
    separator = None if sep is None else _text(sep, "split")
    if separator == "":
        raise FailedError("split needs a separator that is not empty")
    meter.read(len(value))
    pieces = value.count(separator) + 1 if separator else len(value) // 2 + 1
    meter.make_items(pieces if limit < 0 else min(pieces, limit + 1))
    meter.make_text(len(value))
    return list(value.split(separator, limit))


def string(meter: Meter, value: Value) -> str:
    return text(meter, value)


def identifier(meter: Meter, value: Value) -> str:
    """A quoted SQL name. In SQL the tool quotes it, by the rules of its database (templates.render_marked)."""
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
    return to_json(meter, value, None if indent is None else _count(indent, "tojson"))


def fromjson(meter: Meter, value: Value) -> Value:
    value = _text(value, "fromjson")
    meter.make_text(len(value))
    try:
        made = orjson.loads(value)
    except ValueError as exc:  # covers lone surrogates and too deep nesting as well
        raise FailedError(f"fromjson: the text is not JSON: {str(exc).partition(':')[0]}") from None
    return plain(meter, made)


def _bytes(meter: Meter, value: Value, who: str) -> bytes:
    written = text(meter, value)
    meter.make_text(2 * len(written))
    try:
        return written.encode()
    except UnicodeEncodeError:
        raise FailedError(f"{who}: the text is not valid Unicode") from None


def b64encode(meter: Meter, value: Value) -> str:
    return base64.b64encode(_bytes(meter, value, "b64encode")).decode()


def b64decode(meter: Meter, value: Value) -> str:
    try:
        return base64.b64decode(_bytes(meter, value, "b64decode"), validate=True).decode()
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
    try:
        made = float(value) if isinstance(value, (str, int, float)) else None
    except (ValueError, OverflowError):
        made = None
    return default if made is None or not math.isfinite(made) else made


def rounded(meter: Meter, value: Value, precision: Value = 0, method: Value = "common") -> float:
    value, digits = settle(value), _count(precision, "round")
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
    return float(
        checked(meter, (math.ceil(scaled) if method == "ceil" else math.floor(scaled)) / scale)
    )


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


def _end(value: Value, index: int, who: str) -> Value:
    if isinstance(value, dict):
        value = [key for key, _ in zip(reversed(value) if index else value, range(1), strict=False)]
    if not is_lazy(value) and not isinstance(value := settle(value), (str, list)):
        raise FailedError(f"{who} needs a list, not {kind_of(value)}")
    return item(value, index, f"{who} item of an empty list")


def join(meter: Meter, value: Value, d: Value = "", attribute: Value = None) -> str:
    separator = text(meter, d)
    entries = elements(meter, value)
    meter.make_text(len(separator) * max(len(entries) - 1, 0))
    made = []
    for entry in entries:
        made.append(piece := text(meter, _of(entry, attribute)))
        meter.make_text(len(piece))
    return separator.join(made)


def as_list(meter: Meter, value: Value) -> list[Value]:
    return list(elements(meter, value))


def reverse(meter: Meter, value: Value) -> Value:
    value = settle(value)
    if isinstance(value, str):
        meter.make_text(len(value))
        return value[::-1]
    return elements(meter, value)[::-1]


def batch(meter: Meter, value: Value, linecount: Value, fill_with: Value = None) -> list[Value]:
    entries, size = elements(meter, value), _positive(linecount, "batch")
    rows = [entries[at : at + size] for at in range(0, len(entries), size)]
    if fill_with is not None and rows:
        meter.make_items(size)
        rows[-1] = rows[-1] + [fill_with] * (size - len(rows[-1]))
    return rows


def sliced(meter: Meter, value: Value, slices: Value, fill_with: Value = None) -> list[Value]:
    entries, columns = elements(meter, value), _positive(slices, "slice")
    meter.make_items(columns)
    each, extra = divmod(len(entries), columns)
    made, at = [], 0
    for column in range(columns):
        size = each + (column < extra)
        made.append(entries[at : at + size])
        at += size
        if fill_with is not None and extra and column >= extra:
            made[-1].append(fill_with)
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
    """A member or position that may be missing, by a computed name."""
    value = value if is_lazy(value) else settle(value)
    if isinstance(value, (str, int, float)):
        raise FailedError(f"get needs a map or a list, not {kind_of(value)}")
    found = item(value, key, "get")
    return default if isinstance(found, Undefined) else found


def pluck(meter: Meter, value: Value, attribute: Value, default: Value = NO_DEFAULT) -> list[Value]:
    made = []
    for entry in elements(meter, value):
        found = _attribute(entry, attribute)
        if isinstance(found, Undefined):
            found = settle(found if default is NO_DEFAULT else default)
        made.append(found)
    return made


def dictsort(
    meter: Meter,
    value: Value,
    case_sensitive: Value = False,
    by: Value = "key",
    reverse: Value = False,
) -> list[Value]:
    if by not in ("key", "value"):
        raise FailedError("dictsort sorts by key or value")
    return sort(meter, items(meter, value), reverse, case_sensitive, 0 if by == "key" else 1)


# --- order


def _sort_keys(
    meter: Meter, entries: list[Value], attribute: Value, case_sensitive: Value
) -> list[Value]:
    """What to order by: all numbers or all text, so that every comparison has an answer."""
    folding = not truth(case_sensitive)
    made = []
    for entry in entries:
        key = _of(entry, attribute)
        if isinstance(key, str):
            meter.read(len(key))
            key = key.lower() if folding else key
        made.append(key)
    kinds = {"text" if isinstance(key, str) else kind_of(key) for key in made}
    if not (kinds <= {"text"} or kinds <= {"a number", "a bool"}):
        raise FailedError(f"{' and '.join(sorted(kinds))} have no order")
    rounds = len(entries).bit_length()
    meter.work(len(entries) * rounds)
    meter.read(rounds * sum(len(key) for key in made if isinstance(key, str)))
    return made


def sort(
    meter: Meter,
    value: Value,
    reverse: Value = False,
    case_sensitive: Value = False,
    attribute: Value = None,
) -> list[Value]:
    entries = elements(meter, value)
    by = _sort_keys(meter, entries, attribute, case_sensitive)
    order = sorted(range(len(entries)), key=by.__getitem__, reverse=truth(reverse))
    return [entries[at] for at in order]


def groupby(
    meter: Meter,
    value: Value,
    attribute: Value,
    default: Value = None,
    case_sensitive: Value = False,
) -> list[Value]:
    """Pairs [key, items], ordered by key."""
    entries = elements(meter, value)
    tagged: list[Value] = []
    for entry in entries:
        found = _attribute(entry, attribute)
        if isinstance(found, Undefined) and default is not None:
            found = default
        tagged.append([settle(found), entry])
    folding = not truth(case_sensitive)
    groups: list[Value] = []
    last_key: Value = None
    for key, entry in sort(meter, tagged, False, case_sensitive, 0):
        folded = key.lower() if folding and isinstance(key, str) else key
        if not groups or folded != last_key:
            groups.append([key, []])
            last_key = folded
        groups[-1][1].append(entry)
    return groups


def unique(
    meter: Meter, value: Value, case_sensitive: Value = False, attribute: Value = None
) -> list[Value]:
    folding = not truth(case_sensitive)
    seen: set[Value] = set()
    made = []
    for entry in elements(meter, value):
        key = _of(entry, attribute)
        if isinstance(key, str):
            meter.read(len(key))
            key = key.lower() if folding else key
        elif type(key) not in SCALARS:
            key = (to_json(meter, key),)
        if key not in seen:
            seen.add(key)
            made.append(entry)
    return made


def _extreme(
    meter: Meter, value: Value, case_sensitive: Value, attribute: Value, sign: int, who: str
) -> Value:
    entries = elements(meter, value)
    if not entries:
        return Undefined(f"{who} of an empty list", f"{who} of an empty list")
    by = _sort_keys(meter, entries, attribute, case_sensitive)
    best = 0
    for at in range(1, len(entries)):
        if sign * compare(meter, by[at], by[best]) > 0:
            best = at
    return entries[best]


def smallest(
    meter: Meter, value: Value, case_sensitive: Value = False, attribute: Value = None
) -> Value:
    return _extreme(meter, value, case_sensitive, attribute, -1, "min")


def largest(
    meter: Meter, value: Value, case_sensitive: Value = False, attribute: Value = None
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
    return [
        settle(apply(meter, settle(entry), *args[1:], **kwargs)) for entry in elements(meter, value)
    ]


def _chosen(
    meter: Meter, value: Value, attribute: Value, args: tuple[Value, ...], wanted: bool
) -> list[Value]:
    name = _text(args[0], "a test") if args else None
    apply = named(TESTS, name, "test") if name is not None else None
    if apply is not None and name is not None:
        fitting(apply, name, len(args) - 1)
    made = []
    for entry in elements(meter, value):
        subject = entry if attribute is None else _attribute(entry, attribute)
        if apply is None:
            verdict = truth(subject)
        elif name in SUBJECT_MAY_BE_UNDEFINED:
            verdict = apply(meter, subject)
        else:
            meter.work(1)
            verdict = apply(meter, settle(subject), *args[1:])
        if verdict == wanted:
            made.append(entry)
    return made


def select(meter: Meter, value: Value, *args: Value) -> list[Value]:
    return _chosen(meter, value, None, args, True)


def reject(meter: Meter, value: Value, *args: Value) -> list[Value]:
    return _chosen(meter, value, None, args, False)


def selectattr(meter: Meter, value: Value, attribute: Value, *args: Value) -> list[Value]:
    return _chosen(meter, value, attribute, args, True)


def rejectattr(meter: Meter, value: Value, attribute: Value, *args: Value) -> list[Value]:
    return _chosen(meter, value, attribute, args, False)


def default(meter: Meter, value: Value, default_value: Value = "", boolean: Value = False) -> Value:
    """Known here for its name and arguments; evaluated in templates.py."""
    raise AssertionError("default is a form of the language")


# --- tests


def _ordered(accept: Callable[[int], bool]) -> Function:
    def apply(meter: Meter, value: Value, other: Value) -> bool:
        return accept(compare(meter, value, other))

    return apply


def _divisible(meter: Meter, value: Value, by: Value) -> bool:
    value, by = _count(value, "divisibleby"), _count(by, "divisibleby")
    if by == 0:
        raise FailedError("division by zero")
    return bool(value % by == 0)


def _is(accept: Callable[[Any], bool]) -> Function:
    def apply(meter: Meter, value: Value) -> bool:
        return accept(value)

    return apply


def _equal(meter: Meter, value: Value, other: Value) -> bool:
    return equal(meter, value, other)


def _unequal(meter: Meter, value: Value, other: Value) -> bool:
    return not equal(meter, value, other)


def _within(meter: Meter, value: Value, container: Value) -> bool:
    return contains(meter, container, value)


def _case(accept: Callable[[str], bool], who: str) -> Function:
    def apply(meter: Meter, value: Value) -> bool:
        value = _text(value, who)
        meter.read(len(value))
        return accept(value)

    return apply


def _even(meter: Meter, value: Value) -> bool:
    return _count(value, "even") % 2 == 0


def _odd(meter: Meter, value: Value) -> bool:
    return _count(value, "odd") % 2 == 1


_less, _most = _ordered(lambda sign: sign < 0), _ordered(lambda sign: sign <= 0)
_more, _least = _ordered(lambda sign: sign > 0), _ordered(lambda sign: sign >= 0)

SUBJECT_MAY_BE_UNDEFINED = frozenset({"defined", "undefined"})

TESTS: Mapping[str, Function] = {
    "boolean": _is(lambda value: isinstance(value, bool)),
    "defined": _is(lambda value: not isinstance(value, Undefined)),
    "undefined": _is(lambda value: isinstance(value, Undefined)),
    "none": _is(lambda value: value is None),
    "true": _is(lambda value: value is True),
    "false": _is(lambda value: value is False),
    "integer": _is(lambda value: isinstance(value, int) and not isinstance(value, bool)),
    "float": _is(lambda value: isinstance(value, float)),
    "number": _is(lambda value: isinstance(value, (int, float)) and not isinstance(value, bool)),
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
    **dict.fromkeys(("le", "<="), _most),
    **dict.fromkeys(("gt", "greaterthan", ">"), _more),
    **dict.fromkeys(("ge", ">="), _least),
}

LAZY_FILTERS: frozenset[Function] = frozenset(
    {count, first, last, get}
)  # ask a Lazy for a part; others resolve it

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

# Jinja has them, this language does not: they reach Python attributes, format or escape text, or are not repeatable.
LEFT_OUT: Mapping[str, frozenset[str]] = {
    "filter": frozenset(
        {"attr", "center", "e", "escape", "filesizeformat", "forceescape", "format", "pprint"}
    )
    | {"random", "safe", "striptags", "urlize", "wordwrap", "xmlattr"},
    "test": frozenset(("callable", "escaped", "filter", "sameas", "test")),
}


# --- methods of values


def _strip(change: Callable[[str, str | None], str]) -> Function:
    def apply(meter: Meter, value: str, chars: Value = None) -> str:
        meter.make_text(len(value))
        return change(value, None if chars is None else _text(chars, "strip"))

    return apply


def _change(change: Callable[[str], str]) -> Function:
    def apply(meter: Meter, value: str) -> str:
        meter.make_text(len(value))
        return change(value)

    return apply


def _ask(question: Callable[[str], bool]) -> Function:
    def apply(meter: Meter, value: str) -> bool:
        meter.read(len(value))
        return question(value)

    return apply


def _affix(change: Callable[[str, str], str], who: str) -> Function:
    def apply(meter: Meter, value: str, other: Value) -> str:
        other = _text(other, who)
        meter.make_text(len(value))
        return change(value, other)

    return apply


def _search(question: Callable[[str, str], Value], who: str) -> Function:
    def apply(meter: Meter, value: str, other: Value) -> Value:
        other = _text(other, who)
        meter.read(len(value) + len(other))
        return question(value, other)

    return apply


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
    return replace(meter, value, _text(old, "replace"), _text(new, "replace"), count)


def _zfill(meter: Meter, value: str, width: Value) -> str:
    size = _count(width, "zfill")
    meter.make_text(max(size, len(value)))
    return value.zfill(size)


def _get_method(meter: Meter, value: dict[str, Value], key: Value, default: Value = None) -> Value:
    return value.get(_text(key, "get"), default)


def _index(meter: Meter, value: list[Value], wanted: Value) -> int:
    try:
        return _list(meter, plain(meter, value), "index").index(plain(meter, wanted))
    except ValueError:
        raise FailedError("index: the list does not have this item") from None


def _occurrences(meter: Meter, value: list[Value], wanted: Value) -> int:
    return _list(meter, plain(meter, value), "count").count(plain(meter, wanted))


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
    """A meter that also has the outside functions of one rendering, and counts the calls that must differ."""

    __slots__ = ("functions", "made")

    functions: Functions | None
    made: int

    def outside(self, name: str) -> Functions:
        if self.functions is None:
            raise FailedError(f"{name}() is not available here")
        return self.functions

    def nth(self) -> int:
        self.made += 1
        return self.made - 1


def _now(calls: Calls) -> str:
    return calls.outside("now").now()


def _uuid(calls: Calls) -> str:
    return calls.outside("uuid").uuid(calls.nth())


def _random(calls: Calls) -> float:
    return calls.outside("random").random(calls.nth())


def _range(calls: Calls, start: Value, stop: Value = None, step: Value = 1) -> list[Value]:
    begin, end = (0, start) if stop is None else (start, stop)
    stride = _count(step, "range")
    if stride == 0:
        raise FailedError("range needs a step that is not 0")
    wanted = range(_count(begin, "range"), _count(end, "range"), stride)
    # len() of a range refuses sizes beyond a machine word
    calls.make_items(
        max(0, (wanted.stop - wanted.start + stride - (1 if stride > 0 else -1)) // stride)
    )
    return list(wanted)


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
    if (found := table.get(name)) is not None:
        return found
    if name in LEFT_OUT.get(what, ()):
        raise ForbiddenError(f"the {what} '{name}' is not part of the template language")
    near = suggest(name, table)
    raise TemplateSyntaxError(
        f"there is no {what} '{name}'", hint=f"did you mean '{near}'?" if near else None
    )


@lru_cache(maxsize=1024)
def fitting(
    function: Function, name: str, args: int, kwargs: tuple[str, ...] = (), leading: int = 2
) -> None:
    """Refuse arguments that do not fit before the call; the meter and the subject lead (a global has no subject)."""
    try:
        signature(function).bind(*[None] * (leading + args), **dict.fromkeys(kwargs))
    except TypeError as exc:
        raise TemplateSyntaxError(f"{name}: {exc}") from None


def called(function: Function, name: str, *args: Value, **kwargs: Value) -> Value:
    """Call with values that may not fit what the function expects; that is the template's failure, not a bug."""
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
