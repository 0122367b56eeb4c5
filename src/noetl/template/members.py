"""Parts of a value: members, items, slices, length, elements.

The sandbox holds by construction: a member is a key or an index of plain JSON, and a name in a
template never reaches a Python attribute.
"""

from collections.abc import Mapping

from noetl.template.errors import FailedError
from noetl.template.limits import Meter
from noetl.template.values import (
    JSON_VALUE_TYPES,
    Lazy,
    OptionalMap,
    Undefined,
    Value,
    is_lazy,
    is_lazy_type,
    kind_of,
    settle,
)

_MADE_ITEM_BYTES = 88  # of a list that refers to a new text of one character


def get_member(value: Value, name: str, expression: str) -> Value:
    """Return `value.name`, or an Undefined that quotes the expression."""
    kind = type(value)
    if kind is dict:
        if name in value:
            return value[name]
        return Undefined(expression, expression)
    if kind is Undefined:
        undefined: Undefined = value
        return undefined.get_fact(name, expression)
    if kind in JSON_VALUE_TYPES:
        return Undefined(expression, expression)
    if is_lazy_type(kind):
        lazy: Lazy = value
        try:
            found = lazy.read_member(name)
        except LookupError:
            return Undefined(expression, expression)
        if type(found) is not Undefined or found.facts is not None:
            return found
        return Undefined(expression, expression, found.absent)
    if isinstance(value, Mapping) and name in value:
        return value[name]
    if kind is OptionalMap and name in value.undefined:
        return value.undefined[name]
    if kind is OptionalMap and name in value.optional:
        return Undefined(expression, expression, "error")
    return Undefined(expression, expression)


def get_item(value: Value, key: Value, expression: str) -> Value:
    """Return `value[key]`: a member if the key is text, an item of a list if it is an integer."""
    if isinstance(key, str):
        return get_member(value, key, expression)
    if type(value) is Undefined:
        return value
    if not isinstance(key, int) or isinstance(key, bool):
        raise FailedError(f"{kind_of(key)} cannot be an index in '{expression}'")
    try:
        if isinstance(value, (str, list, tuple)):
            return value[key]
        if type(value) not in JSON_VALUE_TYPES and is_lazy_type(type(value)):
            lazy: Lazy = value
            return lazy.read_item(key)
    except LookupError:
        pass
    return Undefined(expression, expression)


def get_slice(meter: Meter, value: Value, bounds: slice, expression: str) -> Value:
    """Return `value[start:stop:step]` of text or a list."""
    if is_lazy(value):
        lazy: Lazy = value
        try:
            return lazy.read_item(bounds)
        except LookupError:
            return Undefined(expression, expression)
    value = settle(value)
    if not isinstance(value, (str, list)):
        raise FailedError(f"{kind_of(value)} has no slices, in '{expression}'")
    size = len(range(*bounds.indices(len(value))))
    if isinstance(value, str):
        meter.spend_text(size, value.isascii())
    else:
        meter.spend_items(size)
    return value[bounds]


def follow_attribute(value: Value, path: str | int, expression: str = "") -> Value:
    """Follow a path such as `a.b.0`, the form in which filters take their `attribute`."""
    if isinstance(path, int):
        return get_item(value, path, expression or str(path))
    for name in path.split("."):
        is_index = name.isascii() and name.isdigit()
        if is_index and not isinstance(value, Mapping):
            value = get_item(value, int(name), path)
        else:
            value = get_member(value, name, path)
    return value


def measure_length(value: Value) -> int:
    if is_lazy(value):
        lazy: Lazy = value
        return int(lazy.read_length())
    if isinstance(value, (str, list, tuple, Mapping)):
        return len(value)
    value = settle(value)
    raise FailedError(f"{kind_of(value)} has no length")


def list_elements(meter: Meter, value: Value) -> list[Value]:
    """Return items of a list, keys of a map or characters of a text, for loops and filters.

    Callers must not change the result: it may be the value itself.
    """
    value = settle(value)
    if isinstance(value, list):
        meter.spend_operations(1 + len(value))
        return value
    if isinstance(value, (str, dict)):
        meter.spend_items(len(value), _MADE_ITEM_BYTES)
        meter.spend_operations(len(value))
        return list(value)
    raise FailedError(f"{kind_of(value)} is not a list")
