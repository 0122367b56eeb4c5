"""Strict JSON bodies: depth and size are checked before they are parsed."""

import re
from typing import Any

import orjson

from noetl.model.duplicate_keys import find_duplicate_key
from noetl.server.http.validation import InvalidRequest, RequestFinding

MAX_JSON_DEPTH = 64
MAX_NUMBER_DIGITS = 400  # digits
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_ONE_KIND = bytes.maketrans(b"{}", b"[]")
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
_NUMBER = re.compile(rb"[0-9]{%d}" % MAX_NUMBER_DIGITS)
_LONG_DIGITS = re.compile(rb"[0-9]{19}")
_INTEGER = re.compile(rb"(?<![0-9.eE+-])-?[0-9]{19,}(?![0-9.eE])")
MIN_EXACT_INTEGER = -(2**63)  # the range of integers that the parser keeps exact
MAX_EXACT_INTEGER = 2**64 - 1


def measure_depth(data: bytes) -> int:
    """The nesting depth of brackets outside strings; counts up to one more than is allowed.

    The parser reports brackets that do not match.
    """
    if data.count(b"[") + data.count(b"{") <= MAX_JSON_DEPTH:
        return 0
    brackets = _STRING.sub(b"", data).translate(_ONE_KIND, _NOT_BRACKETS)
    for level in range(1, MAX_JSON_DEPTH + 1):
        outer = brackets.replace(b"[]", b"")
        if not outer:
            return level
        if len(outer) == len(brackets):  # brackets that do not match
            return MAX_JSON_DEPTH + 1 if brackets.count(b"[") > MAX_JSON_DEPTH else level
        brackets = outer
    return MAX_JSON_DEPTH + 1


def has_nul(data: bytes) -> bool:
    """Whether a text in the JSON contains the character NUL, which no database takes."""
    return b"\\u0000" in data and _NUL.search(data) is not None


def decode_strict_json(data: bytes) -> Any:
    """Parse strict JSON: UTF-8, no NaN, no duplicate keys, no integers of more than 64 bits.

    The parser would turn such an integer into a float of another value.
    """
    if measure_depth(data) > MAX_JSON_DEPTH:
        raise _make_json_error(f"nested more than {MAX_JSON_DEPTH} deep")
    if has_nul(data):
        raise _make_json_error("a NUL character in a text: a database refuses it")
    if _NUMBER.search(data):
        raise _make_json_error(f"a number of more than {MAX_NUMBER_DIGITS} digits")
    integer = _find_large_integer(data)
    if integer is not None:
        raise _make_json_error(f"{integer[:40]} does not fit into 64 bits; send it as text")
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise _make_json_error(
            f"not JSON: {error.msg} (line {error.lineno}, column {error.colno})"
        ) from error
    if _has_duplicate_key(data, value):
        raise _make_json_error(
            f"the key {str(find_duplicate_key(data))[:60]!r} stands twice in one object; keep one of them"
        )
    return value


def _has_duplicate_key(data: bytes, value: Any) -> bool:
    """Whether the text has more keys (colons outside strings) than the parsed value."""
    pairs = _count_keys(value)
    if data.count(b":") == pairs:
        return False
    return _STRING.sub(b"", data).count(b":") != pairs


def _count_keys(value: Any) -> int:
    """The number of keys of all objects in the value."""
    count = 0
    pending = [value]
    while pending:
        part = pending.pop()
        if isinstance(part, dict):
            count += len(part)
            pending.extend(part.values())
        elif isinstance(part, list):
            pending.extend(part)
    return count


def _find_large_integer(data: bytes) -> str | None:
    """The first integer outside strings that does not fit into 64 bits, if there is one."""
    if _LONG_DIGITS.search(data) is None:
        return None
    without_strings = _STRING.sub(b"", data)
    for digits in _INTEGER.findall(without_strings):
        if not MIN_EXACT_INTEGER <= int(digits) <= MAX_EXACT_INTEGER:
            return str(digits, "ascii")
    return None


def _make_json_error(why: str) -> InvalidRequest:
    return InvalidRequest(RequestFinding("json_invalid", ("body",), why))
