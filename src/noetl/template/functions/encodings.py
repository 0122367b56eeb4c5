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


def encode_json(meter: Meter, value: Value, indent: Value = None) -> str:
    return write_json(meter, value, optional_integer(indent, "tojson"))


def decode_json(meter: Meter, value: Value) -> Value:
    value = require_text(value, "fromjson")
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
