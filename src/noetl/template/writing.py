"""Values as text and as JSON."""

import json
import re

import orjson

from noetl.template.errors import FailedError, LimitError
from noetl.template.limits import Meter
from noetl.template.values import JSON_SCALAR_TYPES, Value, settle, to_plain

_MAX_WORD = 2**64
_MAX_UNSEARCHED_CHARACTERS = 4096
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f]")
_WRITTEN_BYTES = 8  # of each byte of a text while it is written as JSON
_INDENTED_OPERATIONS = 3  # of each part that is written with an indent


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
    """Estimate the characters of a plain value's JSON. Counts its own work."""
    size = 0
    stack: list[Value] = [[value]]
    while stack:
        container = stack.pop()
        meter.spend_operations(1 + (len(container) >> 2))
        size += 2 + 3 * len(container)
        parts = container
        if isinstance(container, dict):
            parts = container.values()
            size += sum(map(len, container)) + 4 * len(container)
        for part in parts:
            if isinstance(part, str):
                size += len(part)
                if len(part) > _MAX_UNSEARCHED_CHARACTERS:
                    size += _count_escapes(meter, part)
            elif type(part) in JSON_SCALAR_TYPES:
                size += 5  # on average, together with its comma
            else:
                stack.append(part)
        if size > meter.limits.text:
            raise LimitError(f"the template makes more than {meter.limits.text} characters of text")
    return size


def _count_escapes(meter: Meter, value: str) -> int:
    """Return how much longer a text is at most, if it is written as JSON."""
    for _ in range(4):
        meter.spend_reading(2 * len(value))
    width = 1 if value.isascii() else 4
    meter.spend_memory(_WRITTEN_BYTES * width * len(value))
    if _CONTROL.search(value) is not None:
        return 5 * len(value)
    return sum(map(value.count, '"\\\n\t'))


def write_json(meter: Meter, value: Value, indent: int | None = None) -> str:
    value = to_plain(meter, value)
    size = _estimate_json_size(meter, value)
    if indent is not None:
        if not 0 <= indent <= 16:
            raise FailedError("indent is a number from 0 to 16")
        size *= 1 + indent
        meter.spend_operations(_count_json_parts(value) * _INDENTED_OPERATIONS)
    meter.spend_text(size)
    meter.spend_native(size >> 8)
    json_text = _dump_json(meter, value, indent, size)
    if len(json_text) > size:
        meter.spend_text(len(json_text) - size)
    return json_text


def _count_json_parts(value: Value) -> int:
    count = 0
    stack = [value]
    while stack:
        count += 1
        part = stack.pop()
        if isinstance(part, list):
            stack.extend(part)
        elif isinstance(part, dict):
            stack.extend(part.values())
    return count


def _dump_json(meter: Meter, value: Value, indent: int | None, size: int) -> str:
    if indent is None:
        try:
            return orjson.dumps(value).decode()
        except TypeError:  # integers beyond 64 bits and lone surrogates are data too
            meter.spend_native(size >> 4)
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
