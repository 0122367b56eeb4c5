"""Findings: what in a request does not fit the types of its route.

A request that fits is decoded by msgspec alone. Only for one that does not, the values are compared
with their types one by one, so that the answer names everything that is wrong.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Struct, inspect

MAX_LISTED_UNKNOWN_KEYS = 20  # unknown keys that are reported one by one

Place = tuple[str | int, ...]


class RequestFinding(Struct, frozen=True):
    """One value that does not fit. It never contains the value, which may be a secret."""

    code: str
    place: Place
    message: str


class InvalidRequest(Exception):
    """The request does not fit its route."""

    def __init__(self, *findings: RequestFinding) -> None:
        super().__init__("; ".join(finding.message for finding in findings))
        self.findings = findings


def find_misfits(kind: inspect.Type, value: Any, place: Place) -> Iterator[RequestFinding]:
    """What of the value does not fit the type."""
    match kind:
        case inspect.Metadata():
            yield from find_misfits(kind.type, value, place)
        case inspect.UnionType():
            yield from _find_in_union(kind, value, place)
        case inspect.StructType():
            yield from _find_in_struct(kind, value, place)
        case inspect.StrType():
            yield from _find_in_text(kind, value, place)
        case inspect.IntType():
            yield from _find_in_integer(kind, value, place)
        case inspect.BoolType() if not isinstance(value, bool):
            yield RequestFinding("bool_type", place, "Input should be a valid boolean")
        case inspect.LiteralType() if value not in kind.values or isinstance(value, bool):
            yield RequestFinding("literal_error", place, f"Input should be {_list_words(kind)}")
        case inspect.DictType() if not isinstance(value, dict):
            yield RequestFinding("dict_type", place, "Input should be a valid dictionary")
        case inspect.ListType():
            yield from _find_in_list(kind, value, place)


def _find_in_union(kind: inspect.UnionType, value: Any, place: Place) -> Iterator[RequestFinding]:
    if value is None and kind.includes_none:
        return
    members = [member for member in kind.types if not isinstance(member, inspect.NoneType)]
    if len(members) == 1:
        yield from find_misfits(members[0], value, place)
        return
    found = [list(find_misfits(each, value, (*place, _name_type(each)))) for each in members]
    if all(found):
        for findings in found:
            yield from findings


def _find_in_struct(kind: inspect.StructType, value: Any, place: Place) -> Iterator[RequestFinding]:
    if not isinstance(value, dict):
        message = "Input should be a valid dictionary or object to extract fields from"
        yield RequestFinding("model_attributes_type", place, message)
        return
    known = {field.encode_name for field in kind.fields}
    unknown = [key for key in value if key not in known]
    if len(unknown) > MAX_LISTED_UNKNOWN_KEYS:
        message = f"Value error, {len(unknown)} unknown keys, {unknown[0][:60]!r} among them"
        yield RequestFinding("value_error", place, message)
        return
    for field in kind.fields:
        name = field.encode_name
        if name in value:
            yield from find_misfits(field.type, value[name], (*place, name))
        elif field.required:
            yield RequestFinding("missing", (*place, name), "Field required")
    for key in unknown:
        yield RequestFinding("extra_forbidden", (*place, key), "Extra inputs are not permitted")


def _find_in_text(kind: inspect.StrType, value: Any, place: Place) -> Iterator[RequestFinding]:
    if not isinstance(value, str):
        yield RequestFinding("string_type", place, "Input should be a valid string")
        return
    if kind.min_length is not None and len(value) < kind.min_length:
        message = f"String should have at least {_count(kind.min_length, 'character')}"
        yield RequestFinding("string_too_short", place, message)
    if kind.max_length is not None and len(value) > kind.max_length:
        message = f"String should have at most {_count(kind.max_length, 'character')}"
        yield RequestFinding("string_too_long", place, message)
    if kind.pattern is not None and re.search(kind.pattern, value) is None:
        message = f"String should match pattern '{document_pattern(kind.pattern)}'"
        yield RequestFinding("string_pattern_mismatch", place, message)


def _find_in_integer(kind: inspect.IntType, value: Any, place: Place) -> Iterator[RequestFinding]:
    if not isinstance(value, int) or isinstance(value, bool):
        yield RequestFinding("int_type", place, "Input should be a valid integer")
        return
    if kind.ge is not None and value < kind.ge:
        message = f"Input should be greater than or equal to {kind.ge}"
        yield RequestFinding("greater_than_equal", place, message)
    if kind.le is not None and value > kind.le:
        message = f"Input should be less than or equal to {kind.le}"
        yield RequestFinding("less_than_equal", place, message)


def _find_in_list(kind: inspect.ListType, value: Any, place: Place) -> Iterator[RequestFinding]:
    if not isinstance(value, list):
        yield RequestFinding("list_type", place, "Input should be a valid list")
        return
    count = len(value)
    if kind.min_length is not None and count < kind.min_length:
        least = _count(kind.min_length, "item")
        message = f"List should have at least {least} after validation, not {count}"
        yield RequestFinding("too_short", place, message)
    if kind.max_length is not None and count > kind.max_length:
        most = _count(kind.max_length, "item")
        message = f"List should have at most {most} after validation, not {count}"
        yield RequestFinding("too_long", place, message)
        return
    for index, item in enumerate(value):
        yield from find_misfits(kind.item_type, item, (*place, index))


def document_pattern(pattern: str) -> str:
    r"""The pattern for people and other languages. In ours `$` would allow a line break, so they end in `\Z`."""
    return pattern.replace(r"\Z", "$")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _list_words(kind: inspect.LiteralType) -> str:
    words = [repr(value) for value in order_literal(kind.values)]
    if len(words) == 1:
        return words[0]
    return f"{', '.join(words[:-1])} or {words[-1]}"


# msgspec sorts the values of a Literal; here they have the order in which they are declared
_literal_orders: dict[frozenset[Any], tuple[Any, ...]] = {}


def order_literal(values: Iterable[Any]) -> list[Any]:
    """The values of a Literal in the order in which they are declared."""
    given = list(values)
    return list(_literal_orders.get(frozenset(given), given))


def remember_literals(kind: Any) -> None:
    """Remember the order of the values of each Literal in a type."""
    seen: set[Any] = set()
    pending = [kind]
    while pending:
        part = pending.pop()
        if get_origin(part) is Literal:
            _literal_orders[frozenset(get_args(part))] = get_args(part)
        elif _is_struct(part):
            if part not in seen:
                seen.add(part)
                pending.extend(get_type_hints(part, include_extras=True).values())
        else:
            pending.extend(get_args(part))


def _is_struct(kind: Any) -> bool:
    is_class = isinstance(kind, type) and get_origin(kind) is None
    return is_class and issubclass(kind, msgspec.Struct)


def _name_type(kind: inspect.Type) -> str:
    match kind:
        case inspect.IntType():
            return "int"
        case inspect.LiteralType():
            return f"literal[{_list_words(kind)}]"
        case _:
            return type(kind).__name__


class StructReader:
    """Turns values into one type, or says everything that does not fit."""

    def __init__(self, kind: Any) -> None:
        self._kind = kind
        self._described = inspect.type_info(kind)
        remember_literals(kind)

    def read(self, value: Any, place: Place) -> Any:
        """The value as that type. Raises `InvalidRequest`."""
        try:
            return msgspec.convert(value, self._kind)
        except msgspec.ValidationError as error:
            findings = tuple(find_misfits(self._described, value, place))
            if not findings:  # a check of the struct itself
                findings = (RequestFinding("value_error", place, f"Value error, {error}"),)
            raise InvalidRequest(*findings) from error
