"""Filters of lists and maps."""

from itertools import islice

from noetl.template.errors import FailedError
from noetl.template.functions.arguments import (
    read_attribute,
    read_operand,
    require_map,
    require_positive,
)
from noetl.template.limits import Meter
from noetl.template.members import get_item, list_elements, measure_length
from noetl.template.operators import add
from noetl.template.values import Undefined, Value, is_lazy, kind_of, settle
from noetl.template.writing import format_as_text

_LIST_BYTES = 96  # of a short list that another list refers to
_PAIR_BYTES = 88
NO_DEFAULT = Undefined("default", "default")


def sum_items(
    meter: Meter,
    value: Value,
    attribute: Value = None,
    start: Value = 0,
) -> Value:
    result = start
    entries = list_elements(meter, value)
    meter.spend_operations(len(entries))
    for entry in entries:
        result = add(meter, result, read_operand(entry, attribute))
    return result


def count_items(meter: Meter, value: Value) -> int:
    return measure_length(value)


def get_first(meter: Meter, value: Value) -> Value:
    return _get_end(value, 0, "first")


def get_last(meter: Meter, value: Value) -> Value:
    return _get_end(value, -1, "last")


def _get_end(value: Value, index: int, function_name: str) -> Value:
    """Return the first (index 0) or last (index -1) item."""
    if isinstance(value, dict):
        keys_in_order = reversed(value) if index else iter(value)
        value = list(islice(keys_in_order, 1))
    if not is_lazy(value):
        value = settle(value)
        if not isinstance(value, (str, list)):
            raise FailedError(f"{function_name} needs a list, not {kind_of(value)}")
    return get_item(value, index, f"{function_name} item of an empty list")


def join_items(
    meter: Meter,
    value: Value,
    d: Value = "",
    attribute: Value = None,
) -> str:
    separator = format_as_text(meter, d)
    entries = list_elements(meter, value)
    meter.spend_operations(len(entries))
    meter.spend_text(len(separator) * max(len(entries) - 1, 0), separator.isascii())
    texts = []
    size = 0
    for entry in entries:
        entry_text = format_as_text(meter, read_operand(entry, attribute))
        texts.append(entry_text)
        size += len(entry_text)
        meter.spend_memory(len(entry_text) if entry_text.isascii() else 4 * len(entry_text))
    meter.spend_text(size)
    meter.spend_native(len(texts) >> 3)
    return separator.join(texts)


def convert_to_list(meter: Meter, value: Value) -> list[Value]:
    entries = list_elements(meter, value)
    meter.spend_items(len(entries))
    return list(entries)


def reverse_items(meter: Meter, value: Value) -> Value:
    value = settle(value)
    if isinstance(value, str):
        meter.spend_text(len(value), value.isascii())
        return value[::-1]
    entries = list_elements(meter, value)
    meter.spend_items(len(entries))
    return entries[::-1]


def split_into_batches(
    meter: Meter, value: Value, linecount: Value, fill_with: Value = None
) -> list[Value]:
    entries = list_elements(meter, value)
    size = require_positive(linecount, "batch")
    meter.spend_items(len(entries))
    meter.spend_items(1 + len(entries) // size, _LIST_BYTES)
    rows = [entries[start : start + size] for start in range(0, len(entries), size)]
    if fill_with is not None and rows:
        meter.spend_items(size)
        missing = size - len(rows[-1])
        rows[-1] = rows[-1] + [fill_with] * missing
    return rows


def split_into_slices(
    meter: Meter, value: Value, slices: Value, fill_with: Value = None
) -> list[Value]:
    entries = list_elements(meter, value)
    slice_count = require_positive(slices, "slice")
    meter.spend_items(len(entries))
    meter.spend_items(slice_count, _LIST_BYTES)
    meter.spend_operations(slice_count)
    min_size, longer_slices = divmod(len(entries), slice_count)
    made = []
    start = 0
    for number in range(slice_count):
        size = min_size + (number < longer_slices)
        part = entries[start : start + size]
        start += size
        if fill_with is not None and longer_slices and number >= longer_slices:
            part.append(fill_with)
        made.append(part)
    return made


def list_map_keys(meter: Meter, value: Value) -> list[Value]:
    value = require_map(value, "keys")
    meter.spend_items(len(value))
    return list(value)


def list_map_values(meter: Meter, value: Value) -> list[Value]:
    value = require_map(value, "values")
    meter.spend_items(len(value))
    return list(value.values())


def list_map_items(meter: Meter, value: Value) -> list[Value]:
    value = require_map(value, "items")
    meter.spend_items(len(value), _PAIR_BYTES)
    meter.spend_operations(len(value) >> 1)
    return [[key, entry] for key, entry in value.items()]


def get_or_default(
    meter: Meter,
    value: Value,
    key: Value,
    default: Value = None,
) -> Value:
    """Return a member or item that may be missing. The key may be computed."""
    if not is_lazy(value):
        value = settle(value)
    if isinstance(value, (str, int, float)):
        raise FailedError(f"get needs a map or a list, not {kind_of(value)}")
    found = get_item(value, key, "get")
    return default if isinstance(found, Undefined) else found


def pluck_attribute(
    meter: Meter, value: Value, attribute: Value, default: Value = NO_DEFAULT
) -> list[Value]:
    attributes = []
    entries = list_elements(meter, value)
    meter.spend_operations(len(entries))
    for entry in entries:
        found = read_attribute(entry, attribute)
        if isinstance(found, Undefined):
            if default is not NO_DEFAULT:
                found = default
            found = settle(found)  # raises if it is undefined
        attributes.append(found)
    return attributes
