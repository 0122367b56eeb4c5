"""Filters of numbers."""

import math

from noetl.template.errors import FailedError, LimitError
from noetl.template.functions.arguments import require_integer
from noetl.template.limits import Meter
from noetl.template.operators import check_number
from noetl.template.values import Value, kind_of, settle


def compute_absolute(meter: Meter, value: Value) -> Value:
    value = settle(value)
    if isinstance(value, (int, float)):
        return check_number(meter, abs(value))
    raise FailedError(f"abs needs a number, not {kind_of(value)}")


def convert_to_integer(
    meter: Meter,
    value: Value,
    default: Value = 0,
    base: Value = 10,
) -> Value:
    value = settle(value)
    if isinstance(value, str) and len(value) > 400:
        raise LimitError("int: the text is too long for a number")
    try:
        if isinstance(value, str):
            return check_number(meter, _parse_whole(value, require_integer(base, "int")))
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
    digits = require_integer(precision, "round")
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
