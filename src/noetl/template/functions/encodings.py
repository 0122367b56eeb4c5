"""Filters for JSON, base64 and hashes."""

import base64
import binascii
import hashlib

import orjson

from noetl.template.errors import FailedError
from noetl.template.functions.arguments import optional_integer, require_text
from noetl.template.limits import Meter
from noetl.template.values import Value, to_plain
from noetl.template.writing import format_as_text, write_json

_STRUCTURE = ",[{"
_READ_BYTES = 12  # of each character while JSON is read
_VALUE_BYTES = 40
_CONTAINER_BYTES = 64


def encode_json(meter: Meter, value: Value, indent: Value = None) -> str:
    return write_json(meter, value, optional_integer(indent, "tojson"))


def decode_json(meter: Meter, value: Value) -> Value:
    value = require_text(value, "fromjson")
    _spend_decoding(meter, value)
    try:
        data = orjson.loads(value)
    except ValueError as exc:  # covers lone surrogates and too deep nesting as well
        reason = str(exc).partition(":")[0]
        raise FailedError(f"fromjson: the text is not JSON: {reason}") from None
    return to_plain(meter, data)


def _spend_decoding(meter: Meter, value: str) -> None:
    """Count the reading of JSON. Its commas and brackets bound the values that it has."""
    meter.spend_text(len(value), value.isascii())
    meter.spend_memory(_READ_BYTES * len(value))
    for _ in _STRUCTURE:
        meter.spend_reading(len(value))
    commas, lists, maps = map(value.count, _STRUCTURE)
    meter.spend_memory(_VALUE_BYTES * commas + _CONTAINER_BYTES * (lists + maps))
    meter.spend_native(1 + (commas + lists + maps >> 3))


def _encode_text(meter: Meter, value: Value, function_name: str) -> bytes:
    value_text = format_as_text(meter, value)
    meter.spend_text(2 * len(value_text), value_text.isascii())
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
