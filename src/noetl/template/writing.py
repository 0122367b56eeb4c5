"""Values as text and as JSON."""

import json

import orjson

from noetl.template.errors import FailedError, LimitError
from noetl.template.limits import Meter
from noetl.template.values import JSON_SCALAR_TYPES, Value, settle, to_plain

_MAX_WORD = 2**64


def write_scalar(value: Value) -> str:
    if isinstance(value, str):
        return value
    if type(value) is int and -_MAX_WORD < value < _MAX_WORD:
        return str(value)
    if value is None:
        return "null"
    if value is True:
        return "true"
    if value is False:
        return "false"
    if isinstance(value, int) and value.bit_length() > 8192:
        raise LimitError("an integer is too long to be written")
    if isinstance(value, float):
        return repr(value)
    return str(value)


def format_as_text(meter: Meter, value: Value) -> str:
    """Convert a value to text: text stays as it is, anything else becomes JSON."""
    if type(value) not in JSON_SCALAR_TYPES:
        value = settle(value)
        if isinstance(value, (list, dict)):
            return write_json(meter, value)
    return write_scalar(value)


def _estimate_json_size(meter: Meter, value: Value) -> int:
    """Estimate the characters of a plain value's JSON. `to_plain` has counted its parts already."""
    size = 0
    stack = [value]
    while stack:
        value = stack.pop()
        if isinstance(value, str):
            size += len(value) + 3
        elif isinstance(value, list):
            size += 2
            stack.extend(value)
        elif isinstance(value, dict):
            size += 2 + sum(len(key) + 4 for key in value)
            stack.extend(value.values())
        else:
            size += 8
        if size > meter.limits.text:
            raise LimitError(f"the template makes more than {meter.limits.text} characters of text")
    return size


def write_json(meter: Meter, value: Value, indent: int | None = None) -> str:
    value = to_plain(meter, value)
    size = _estimate_json_size(meter, value)
    if indent is not None:
        if not 0 <= indent <= 16:
            raise FailedError("indent is a number from 0 to 16")
        size *= 1 + indent
    meter.spend_text(size)
    json_text = _dump_json(value, indent)
    if len(json_text) > size:
        meter.spend_text(len(json_text) - size)
    return json_text


def _dump_json(value: Value, indent: int | None) -> str:
    if indent is None:
        try:
            return orjson.dumps(value).decode()
        except TypeError:  # integers beyond 64 bits and lone surrogates are data too
            pass
    separators = (",", ":") if indent is None else (",", ": ")
    try:
        json_text = json.dumps(
            value, ensure_ascii=False, separators=separators, indent=indent, allow_nan=False
        )
        json_text.encode()
    except UnicodeEncodeError:
        return json.dumps(value, separators=separators, indent=indent, allow_nan=False)
    except ValueError as exc:
        raise FailedError("a value cannot be written as JSON") from exc
    return json_text
