"""Operators: truth, comparison and arithmetic."""

import math
import operator
from collections.abc import Callable
from typing import Any

from noetl.template.errors import FailedError, ForbiddenError, LimitError
from noetl.template.limits import Meter
from noetl.template.values import JSON_SCALAR_TYPES, Undefined, Value, kind_of, settle, to_plain


def is_truthy(value: Value) -> bool:
    if type(value) is Undefined and value.absent:
        return False
    return bool(settle(value))


def is_no_error(value: Value) -> bool:
    """Whether the value is the error of a call that did not fail, or a part of that error."""
    return type(value) is Undefined and value.absent == "error"


def are_equal(meter: Meter, left: Value, right: Value) -> bool:
    left, right = settle(left), settle(right)
    if isinstance(left, str) and isinstance(right, str):
        meter.spend_reading(min(len(left), len(right)))
    if type(left) in JSON_SCALAR_TYPES or type(right) in JSON_SCALAR_TYPES:
        return bool(left == right)
    left, right = to_plain(meter, left), to_plain(meter, right)
    if isinstance(left, list) != isinstance(right, list) or len(left) != len(right):
        return False
    meter.spend_native(measure_comparison(meter, left))
    return bool(left == right)


def measure_comparison(meter: Meter, value: Value) -> int:
    """Return the operations of one comparison with a plain value. Counts its own work."""
    if isinstance(value, str):
        return 1 + (len(value) >> 7)
    if not isinstance(value, (list, dict)):
        return 1
    total = 0
    stack: list[Value] = [value]
    while stack:
        container = stack.pop()
        meter.spend_operations(1 + (len(container) >> 2))
        total += 1 + (len(container) >> 4)
        parts = container
        if isinstance(container, dict):
            parts = container.values()
            total += sum(map(len, container)) >> 7
        for part in parts:
            if isinstance(part, str):
                total += len(part) >> 7
            elif isinstance(part, (list, dict)):
                stack.append(part)
    return total


def _spend_search(meter: Meter, entries: list[Value], wanted: Value) -> None:
    """Count the comparing of a value with every entry of a plain list."""
    meter.spend_native(1 + (len(entries) >> 3))
    weight = measure_comparison(meter, wanted)
    if weight <= 1:
        return
    if isinstance(wanted, str):  # texts of other lengths differ at once
        size = len(wanted)
        meter.spend_operations(len(entries) >> 2)
        alike = sum(1 for entry in entries if type(entry) is str and len(entry) == size)
    else:
        alike = sum(1 for entry in entries if type(entry) is type(wanted))
    meter.spend_native(alike * weight)


def find_position(meter: Meter, entries: Value, wanted: Value) -> int | None:
    """Return the position of the first entry that equals the value, or None if none does."""
    entries, wanted = to_plain(meter, entries), to_plain(meter, wanted)
    _spend_search(meter, entries, wanted)
    try:
        return int(entries.index(wanted))
    except ValueError:
        return None


def count_equal(meter: Meter, entries: Value, wanted: Value) -> int:
    entries, wanted = to_plain(meter, entries), to_plain(meter, wanted)
    _spend_search(meter, entries, wanted)
    return int(entries.count(wanted))


def compare(meter: Meter, left: Value, right: Value) -> int:
    """Return -1, 0 or 1. Only numbers with numbers and text with text have an order."""
    left, right = settle(left), settle(right)
    if isinstance(left, str) and isinstance(right, str):
        meter.spend_reading(min(len(left), len(right)))
    elif not isinstance(left, (int, float)) or not isinstance(right, (int, float)):
        raise FailedError(f"{kind_of(left)} and {kind_of(right)} have no order")
    return int(left > right) - int(left < right)


def contains(meter: Meter, container: Value, value: Value) -> bool:
    container, value = settle(container), settle(value)
    if isinstance(container, str):
        if not isinstance(value, str):
            raise FailedError(f"text cannot contain {kind_of(value)}")
        meter.spend_reading(len(container) + len(value))
        return value in container
    if isinstance(container, dict):
        if not isinstance(value, str):
            return False
        meter.spend_reading(len(value))
        return value in container
    if isinstance(container, list):
        return find_position(meter, container, value) is not None
    raise FailedError(f"{kind_of(container)} cannot contain anything")


def _is_computable(value: Value) -> bool:
    return isinstance(value, (int, float))


def check_number(meter: Meter, value: Value) -> Value:
    """Return a computed number if it is real, finite, and within `RenderLimits.bits`."""
    if isinstance(value, float):
        if not math.isfinite(value):
            raise FailedError("the result is not a finite number")
    elif isinstance(value, int):
        if value.bit_length() > meter.limits.bits:
            raise LimitError(f"an integer takes more than {meter.limits.bits} bits")
    else:
        raise FailedError("the result is not a real number")
    return value


def _compute(
    meter: Meter,
    sign: str,
    left: Value,
    right: Value,
    operation: Callable[[Any, Any], Any],
) -> Value:
    if not (_is_computable(left) and _is_computable(right)):
        raise FailedError(f"{kind_of(left)} {sign} {kind_of(right)} has no meaning")
    _check_operands(meter, left, right)
    try:
        return check_number(meter, operation(left, right))
    except ZeroDivisionError:
        raise FailedError("division by zero") from None
    except (OverflowError, ValueError):
        raise FailedError("the result is not a finite number") from None


def _check_operands(meter: Meter, *numbers: Value) -> None:
    # Data may hold longer integers. They may not be computed with, so that the work of one
    # operation stays within a few machine words.
    for number in numbers:
        if isinstance(number, int) and number.bit_length() > meter.limits.bits:
            raise LimitError(f"an integer takes more than {meter.limits.bits} bits")


def add(meter: Meter, left: Value, right: Value) -> Value:
    left, right = settle(left), settle(right)
    if isinstance(left, str) and isinstance(right, str):
        meter.spend_text(len(left) + len(right), left.isascii() and right.isascii())
        return left + right
    if isinstance(left, list) and isinstance(right, list):
        meter.spend_items(len(left) + len(right))
        return left + right
    return _compute(meter, "+", left, right, operator.add)


def subtract(meter: Meter, left: Value, right: Value) -> Value:
    left, right = settle(left), settle(right)
    return _compute(meter, "-", left, right, operator.sub)


def multiply(meter: Meter, left: Value, right: Value) -> Value:
    left, right = settle(left), settle(right)
    if isinstance(left, int) and isinstance(right, (str, list)):
        left, right = right, left
    if isinstance(left, (str, list)) and isinstance(right, int):
        return repeat(meter, left, right)
    return _compute(meter, "*", left, right, operator.mul)


def repeat(meter: Meter, value: str | list[Value], times: int) -> Value:
    times = max(times, 0)
    if isinstance(value, str):
        meter.spend_text(len(value) * times, value.isascii())
        return value * times
    before = meter.operations
    to_plain(
        meter, value
    )  # counts one copy with all its parts: nested repetition grows exponentially
    weight = before - meter.operations
    meter.spend_items(len(value) * times)
    meter.spend_operations(weight * times)
    return value * times


def divide(meter: Meter, left: Value, right: Value) -> Value:
    left, right = settle(left), settle(right)
    return _compute(meter, "/", left, right, operator.truediv)


def floor_divide(meter: Meter, left: Value, right: Value) -> Value:
    left, right = settle(left), settle(right)
    return _compute(meter, "//", left, right, operator.floordiv)


def compute_modulo(meter: Meter, left: Value, right: Value) -> Value:
    left, right = settle(left), settle(right)
    if isinstance(left, str):
        raise ForbiddenError("text cannot be formatted with %", hint="join parts with ~")
    return _compute(meter, "%", left, right, operator.mod)


def raise_to_power(meter: Meter, left: Value, right: Value) -> Value:
    left, right = settle(left), settle(right)
    if isinstance(left, int) and isinstance(right, int) and abs(left) > 1:
        if left.bit_length() * max(right, 0) > 2 * meter.limits.bits:
            raise LimitError(f"an integer takes more than {meter.limits.bits} bits")
        if right < -1100:
            return 0.0
    return _compute(meter, "**", left, right, operator.pow)


def negate(meter: Meter, value: Value) -> Value:
    return _compute(meter, "-", 0, settle(value), lambda a, b: -b)


def affirm(meter: Meter, value: Value) -> Value:
    return _compute(meter, "+", 0, settle(value), lambda a, b: +b)
