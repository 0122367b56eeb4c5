"""Checks of arguments that several functions share."""

from noetl.template.errors import FailedError
from noetl.template.members import follow_attribute
from noetl.template.values import Value, kind_of, settle


def require_text(value: Value, function_name: str) -> str:
    value = settle(value)
    if isinstance(value, str):
        return value
    raise FailedError(f"{function_name} needs text, not {kind_of(value)}")


def require_map(value: Value, function_name: str) -> dict[str, Value]:
    value = settle(value)
    if isinstance(value, dict):
        return value
    raise FailedError(f"{function_name} needs a map, not {kind_of(value)}")


def require_integer(value: Value, function_name: str) -> int:
    value = settle(value)
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() <= 64:
        return value
    raise FailedError(f"{function_name} needs a whole number, not {kind_of(value)}")


def require_positive(value: Value, function_name: str) -> int:
    count = require_integer(value, function_name)
    if count > 0:
        return count
    raise FailedError(f"{function_name} needs a number above 0")


def read_attribute(value: Value, path: Value) -> Value:
    if isinstance(path, bool) or not isinstance(path, (str, int)):
        raise FailedError(f"an attribute is named by text or a position, not {kind_of(path)}")
    return follow_attribute(value, path)


def read_operand(value: Value, path: Value) -> Value:
    """Return the value to compare, add or join: the item, or its attribute if `path` names one."""
    if path is None:
        return settle(value)
    return settle(read_attribute(value, path))


def optional_text(value: Value, function_name: str) -> str | None:
    return None if value is None else require_text(value, function_name)


def optional_integer(value: Value, function_name: str) -> int | None:
    return None if value is None else require_integer(value, function_name)
