"""Filters that sort, group and compare the items of a list."""

from noetl.template.errors import FailedError
from noetl.template.functions.arguments import read_attribute, read_operand
from noetl.template.functions.lists import list_map_items
from noetl.template.limits import Meter
from noetl.template.members import list_elements
from noetl.template.operators import compare, is_truthy
from noetl.template.values import JSON_SCALAR_TYPES, Undefined, Value, kind_of, settle
from noetl.template.writing import write_json, write_scalar

_SORTED_BYTES = 64  # of each entry, for its key and its position
# Many integers of more bits have the same hash, and a set would compare each with all others.
_MAX_HASHED_BITS = 64
_SEEN_BYTES = 100  # of each entry of a set


def _lower_case(meter: Meter, value: str) -> str:
    meter.spend_case_change(value, is_quick=True)
    return value.lower()


def sort_map(
    meter: Meter,
    value: Value,
    case_sensitive: Value = False,
    by: Value = "key",
    reverse: Value = False,
) -> list[Value]:
    if by not in ("key", "value"):
        raise FailedError("dictsort sorts by key or value")
    position = 0 if by == "key" else 1
    return sort_items(meter, list_map_items(meter, value), reverse, case_sensitive, position)


def _compute_sort_keys(
    meter: Meter,
    entries: list[Value],
    attribute: Value,
    case_sensitive: Value,
) -> list[Value]:
    """Return the key to sort each entry by.

    All are numbers or all are text, so that they compare.
    """
    ignores_case = not is_truthy(case_sensitive)
    sort_keys = []
    kinds = set()
    meter.spend_operations(len(entries))
    meter.spend_items(len(entries), _SORTED_BYTES)
    for entry in entries:
        key = read_operand(entry, attribute)
        if isinstance(key, str):
            kinds.add("text")
            if ignores_case:
                key = _lower_case(meter, key)
        else:
            kinds.add(kind_of(key))
        sort_keys.append(key)
    if not (kinds <= {"text"} or kinds <= {"a number", "a bool"}):
        raise FailedError(f"{' and '.join(sorted(kinds))} have no order")
    rounds = len(entries).bit_length()
    pieces = sum(len(key) >> 7 for key in sort_keys if isinstance(key, str))
    meter.spend_native((len(entries) * rounds >> 4) + rounds * pieces)
    return sort_keys


def sort_items(
    meter: Meter,
    value: Value,
    reverse: Value = False,
    case_sensitive: Value = False,
    attribute: Value = None,
) -> list[Value]:
    entries = list_elements(meter, value)
    sort_keys = _compute_sort_keys(meter, entries, attribute, case_sensitive)
    order = sorted(range(len(entries)), key=sort_keys.__getitem__, reverse=is_truthy(reverse))
    return [entries[index] for index in order]


def group_items(
    meter: Meter,
    value: Value,
    attribute: Value,
    default: Value = None,
    case_sensitive: Value = False,
) -> list[Value]:
    """Return pairs [key, items], ordered by key."""
    pairs: list[Value] = []
    entries = list_elements(meter, value)
    meter.spend_operations(2 * len(entries))
    meter.spend_memory(2 * _SEEN_BYTES * len(entries))
    for entry in entries:
        key = read_attribute(entry, attribute)
        if isinstance(key, Undefined) and default is not None:
            key = default
        pairs.append([settle(key), entry])
    ignores_case = not is_truthy(case_sensitive)
    groups: list[Value] = []
    last_key: Value = None
    for key, entry in sort_items(meter, pairs, False, case_sensitive, 0):
        compared_key = key
        if isinstance(key, str):
            meter.spend_reading(len(key))
            if ignores_case:
                compared_key = _lower_case(meter, key)
        if not groups or compared_key != last_key:
            groups.append([key, []])
            last_key = compared_key
        groups[-1][1].append(entry)
    return groups


def remove_duplicates(
    meter: Meter,
    value: Value,
    case_sensitive: Value = False,
    attribute: Value = None,
) -> list[Value]:
    ignores_case = not is_truthy(case_sensitive)
    seen: set[Value] = set()
    unique_entries = []
    entries = list_elements(meter, value)
    meter.spend_operations(len(entries))
    meter.spend_memory(_SEEN_BYTES * len(entries))
    for entry in entries:
        key = read_operand(entry, attribute)
        if isinstance(key, str):
            meter.spend_reading(len(key))
            if ignores_case:
                key = _lower_case(meter, key)
        elif type(key) not in JSON_SCALAR_TYPES:
            key = (write_json(meter, key),)
        elif isinstance(key, int) and key.bit_length() > _MAX_HASHED_BITS:
            key = (write_scalar(key),)
        if key not in seen:
            seen.add(key)
            unique_entries.append(entry)
    return unique_entries


def _find_extreme(
    meter: Meter,
    value: Value,
    case_sensitive: Value,
    attribute: Value,
    sign: int,
    function_name: str,
) -> Value:
    """Return the smallest (sign -1) or the largest (sign 1) entry."""
    entries = list_elements(meter, value)
    if not entries:
        return Undefined(f"{function_name} of an empty list", f"{function_name} of an empty list")
    sort_keys = _compute_sort_keys(meter, entries, attribute, case_sensitive)
    best = 0
    for index in range(1, len(entries)):
        if sign * compare(meter, sort_keys[index], sort_keys[best]) > 0:
            best = index
    return entries[best]


def find_smallest(
    meter: Meter,
    value: Value,
    case_sensitive: Value = False,
    attribute: Value = None,
) -> Value:
    return _find_extreme(meter, value, case_sensitive, attribute, -1, "min")


def find_largest(
    meter: Meter,
    value: Value,
    case_sensitive: Value = False,
    attribute: Value = None,
) -> Value:
    return _find_extreme(meter, value, case_sensitive, attribute, 1, "max")
