"""All filters by name, and those that apply other filters and tests."""

from collections.abc import Mapping

from noetl.template.errors import FailedError
from noetl.template.functions.arguments import read_attribute, require_text
from noetl.template.functions.calling import Function, check_arguments, find_function
from noetl.template.functions.encodings import (
    decode_base64,
    decode_json,
    encode_base64,
    encode_json,
    hash_sha256,
)
from noetl.template.functions.lists import (
    convert_to_list,
    count_items,
    get_first,
    get_last,
    get_or_default,
    join_items,
    list_map_items,
    list_map_keys,
    list_map_values,
    pluck_attribute,
    reverse_items,
    split_into_batches,
    split_into_slices,
    sum_items,
)
from noetl.template.functions.numbers import (
    compute_absolute,
    convert_to_float,
    convert_to_integer,
    round_number,
)
from noetl.template.functions.order import (
    find_largest,
    find_smallest,
    group_items,
    remove_duplicates,
    sort_items,
    sort_map,
)
from noetl.template.functions.tests import SUBJECT_MAY_BE_UNDEFINED, TESTS
from noetl.template.functions.text import (
    _make_case_filter,
    accept_sql,
    convert_to_text,
    convert_to_title,
    count_words,
    encode_url,
    indent_text,
    quote_sql_identifier,
    replace_text,
    split_text,
    trim_text,
    truncate_text,
)
from noetl.template.limits import Meter
from noetl.template.members import list_elements
from noetl.template.operators import is_truthy
from noetl.template.values import Value, settle


def map_items(meter: Meter, value: Value, *args: Value, **kwargs: Value) -> list[Value]:
    if not args:
        if not kwargs.keys() <= {"attribute", "default"} or "attribute" not in kwargs:
            raise FailedError("map needs the name of a filter, or attribute=")
        return pluck_attribute(meter, value, **kwargs)
    name = require_text(args[0], "map")
    if name in ("default", "d"):
        raise FailedError("map cannot apply default", hint="map(attribute=..., default=...)")
    apply = find_function(FILTERS, name, "filter")
    check_arguments(apply, name, len(args) - 1, tuple(kwargs))
    more = args[1:]
    entries = list_elements(meter, value)
    meter.spend_operations(len(entries))
    return [settle(apply(meter, settle(entry), *more, **kwargs)) for entry in entries]


def _choose_items(
    meter: Meter,
    value: Value,
    attribute: Value,
    args: tuple[Value, ...],
    wanted: bool,
) -> list[Value]:
    """Return the entries for which the test (by default: truth) gives `wanted`."""
    name: str | None = None
    test: Function | None = None
    if args:
        name = require_text(args[0], "a test")
        test = find_function(TESTS, name, "test")
        check_arguments(test, name, len(args) - 1)
    chosen = []
    entries = list_elements(meter, value)
    meter.spend_operations(len(entries))
    for entry in entries:
        subject = entry if attribute is None else read_attribute(entry, attribute)
        if test is None:
            passes = is_truthy(subject)
        elif name in SUBJECT_MAY_BE_UNDEFINED:
            passes = test(meter, subject)
        else:
            meter.spend_operations(1)
            passes = test(meter, settle(subject), *args[1:])
        if passes == wanted:
            chosen.append(entry)
    return chosen


def select_items(meter: Meter, value: Value, *args: Value) -> list[Value]:
    return _choose_items(meter, value, None, args, True)


def reject_items(meter: Meter, value: Value, *args: Value) -> list[Value]:
    return _choose_items(meter, value, None, args, False)


def select_by_attribute(meter: Meter, value: Value, attribute: Value, *args: Value) -> list[Value]:
    return _choose_items(meter, value, attribute, args, True)


def reject_by_attribute(meter: Meter, value: Value, attribute: Value, *args: Value) -> list[Value]:
    return _choose_items(meter, value, attribute, args, False)


def declare_default(
    meter: Meter, value: Value, default_value: Value = "", boolean: Value = False
) -> Value:
    """Only declares the name and the parameters. `template/expressions.py` evaluates `default`."""
    raise AssertionError("default is a form of the language")


# These read a part of a Lazy. All other filters load its data.
LAZY_FILTERS: frozenset[Function] = frozenset({count_items, get_first, get_last, get_or_default})
FILTERS: Mapping[str, Function] = {
    "abs": compute_absolute,
    "b64decode": decode_base64,
    "b64encode": encode_base64,
    "batch": split_into_batches,
    "capitalize": _make_case_filter(str.capitalize, "capitalize"),
    "count": count_items,
    "d": declare_default,
    "default": declare_default,
    "dictsort": sort_map,
    "first": get_first,
    "float": convert_to_float,
    "fromjson": decode_json,
    "get": get_or_default,
    "groupby": group_items,
    "identifier": quote_sql_identifier,
    "indent": indent_text,
    "int": convert_to_integer,
    "items": list_map_items,
    "join": join_items,
    "keys": list_map_keys,
    "last": get_last,
    "length": count_items,
    "list": convert_to_list,
    "lower": _make_case_filter(str.lower, "lower", is_quick=True),
    "map": map_items,
    "max": find_largest,
    "min": find_smallest,
    "pluck": pluck_attribute,
    "reject": reject_items,
    "rejectattr": reject_by_attribute,
    "replace": replace_text,
    "reverse": reverse_items,
    "round": round_number,
    "select": select_items,
    "selectattr": select_by_attribute,
    "sha256": hash_sha256,
    "slice": split_into_slices,
    "sort": sort_items,
    "split": split_text,
    "sql": accept_sql,
    "string": convert_to_text,
    "sum": sum_items,
    "title": convert_to_title,
    "tojson": encode_json,
    "trim": trim_text,
    "truncate": truncate_text,
    "unique": remove_duplicates,
    "upper": _make_case_filter(str.upper, "upper", is_quick=True),
    "urlencode": encode_url,
    "values": list_map_values,
    "wordcount": count_words,
}
