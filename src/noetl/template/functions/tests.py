"""Tests: functions after `is`."""

from collections.abc import Callable, Mapping
from typing import Any

from noetl.template.errors import FailedError
from noetl.template.functions.arguments import require_integer, require_text
from noetl.template.functions.calling import Function
from noetl.template.limits import Meter
from noetl.template.operators import are_equal, compare, contains
from noetl.template.values import Undefined, Value


def _make_order_test(accept: Callable[[int], bool]) -> Function:
    def test_order(meter: Meter, value: Value, other: Value) -> bool:
        return accept(compare(meter, value, other))

    return test_order


def _test_divisible(meter: Meter, value: Value, by: Value) -> bool:
    value = require_integer(value, "divisibleby")
    by = require_integer(by, "divisibleby")
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
        value = require_text(value, function_name)
        meter.spend_reading(len(value))
        return accept(value)

    return test_text


def _test_even(meter: Meter, value: Value) -> bool:
    return require_integer(value, "even") % 2 == 0


def _test_odd(meter: Meter, value: Value) -> bool:
    return require_integer(value, "odd") % 2 == 1


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
