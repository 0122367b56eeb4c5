"""Values, errors and operations of the template language.

Jinja2 is only the parser; this module defines what an expression *means*. The sandbox holds by
construction: a value is plain JSON, a member is a key or an index, and a name in a template never
reaches a Python attribute. A `Meter` bounds the work by counting it before anything is allocated.
So the same template over the same scope succeeds or fails alike on every machine and in every
replay.

An **undefined** value may be passed on and tested. `settle` is the only way to use a value, and it
refuses undefined ones. A **lazy** value stands for data that is stored elsewhere. It returns single
parts, and loads all of its data only if an operation needs it.
"""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Literal, Protocol, TypeAlias

import orjson
from jinja2 import nodes

from noetl.model.errors import NoetlError

# Plain JSON, a Lazy, or (inside the evaluator) an Undefined. A precise recursive union would need a
# cast at every operation, which checks nothing. `settle` and `plain` check at run time.
Value: TypeAlias = Any


class TemplateError(NoetlError):
    """A template is wrong, or its evaluation failed.

    TemplateError
    ├── TemplateSyntaxError   TEMPLATE_SYNTAX      it does not parse, or has an unknown filter
    ├── UndefinedError        TEMPLATE_UNDEFINED   it uses a missing name or member
    ├── LimitError            TEMPLATE_LIMIT       it would cost more than allowed
    ├── ForbiddenError        TEMPLATE_FORBIDDEN   it uses a part of Jinja that is left out
    └── FailedError           TEMPLATE_FAILED      an operation does not apply to its values
    """

    code = "TEMPLATE_FAILED"

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        line: int | None = None,
        column: int | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.message = message
        self.line = line
        self.column = column
        self.template: str | None = None
        self.path = ""  # where the template is in the rendered structure, such as `.rows[2].id`

    def __str__(self) -> str:
        if self.hint:
            return f"{self.message} ({self.hint})"
        return self.message


class TemplateSyntaxError(TemplateError):
    code = "TEMPLATE_SYNTAX"


class LimitError(TemplateError):
    code = "TEMPLATE_LIMIT"


class ForbiddenError(TemplateError):
    code = "TEMPLATE_FORBIDDEN"


class FailedError(TemplateError):
    code = "TEMPLATE_FAILED"


class UndefinedError(TemplateError):
    code = "TEMPLATE_UNDEFINED"

    def __init__(self, expression: str, missing: str, because: str = "") -> None:
        message = f"'{missing}' is undefined"
        if expression != missing:
            message = f"'{expression}' cannot be used: {message}"
        if because:
            message += f", because {because}"
        super().__init__(message, hint="test it with 'is defined' or give default(...)")
        self.expression = expression
        self.missing = missing
        self.because = because


class NeedsData(Exception):
    """A Lazy raises this if its data is not loaded yet. The caller loads it and evaluates again."""

    def __init__(self, request: object) -> None:
        super().__init__(request)
        self.request = request


@dataclass(frozen=True, slots=True)
class Undefined:
    """The value of a missing name or member.

    `expression` is the whole expression, `missing` the first part of it that is missing.

    `absent` is set if the name is known but has no value by design. A truth test takes an absent
    value for false.

    - `error`: the call did not fail. Comparing a field of its error gives false, and `!=` true.
    - `step`: the step has not run, or the step or task failed. `because` gives the reason. `facts`
      are the members that templates can read all the same, such as `status` and `error`.
    """

    expression: str
    missing: str
    absent: Literal["", "error", "step"] = ""
    because: str = ""
    facts: Mapping[str, Value] | None = field(default=None, compare=False, repr=False)

    def make_error(self) -> UndefinedError:
        return UndefinedError(self.expression, self.missing, self.because)

    def get_fact(self, name: str, expression: str) -> Value:
        """Return one of the facts.

        Any other member is undefined for the same reason as this value.
        """
        if self.facts is None or name not in self.facts:
            return self
        value = self.facts[name]
        if type(value) is Undefined:
            return Undefined(expression, expression, value.absent)
        return value


def make_failed_value(name: str, because: str, facts: Mapping[str, Value]) -> Undefined:
    """Make the value of a step or task that failed. Facts that are None are left out."""
    known = {fact: value for fact, value in facts.items() if value is not None}
    return Undefined(name, name, "step", because, {"error": NO_ERROR, **known})


NO_ERROR = Undefined("error", "error", "error")
NO_UNDEFINED_KEYS: Mapping[str, Undefined] = {}


class OptionalMap(dict[str, Value]):
    """A map in which some keys may be missing by design.

    `optional` are keys that exist only after a failure, such as `error` of `output`. If one is
    missing, its value is absent. `undefined` are keys without a value, such as `data` of `output`
    after a failure. They are not part of the map when it is used as a whole.
    """

    __slots__ = ("optional", "undefined")

    def __init__(
        self,
        values: Mapping[str, Value],
        *optional: str,
        undefined: Mapping[str, Undefined] = NO_UNDEFINED_KEYS,
    ) -> None:
        super().__init__(values)
        self.optional = optional
        self.undefined = undefined


class Lazy(Protocol):
    """Data by reference. Raises LookupError for a missing part, NeedsData if data is not loaded."""

    def read_member(self, name: str) -> Value: ...
    def read_item(self, index: int | slice) -> Value: ...
    def read_length(self) -> int: ...
    def load_plain(self) -> Value: ...


class Functions(Protocol):
    """Functions that depend on more than their arguments.

    `nth` counts the calls within one rendering, so that a repeated evaluation gets the same values.
    """

    def now(self) -> str: ...
    def uuid(self, nth: int) -> str: ...
    def random(self, nth: int) -> float: ...


@dataclass(frozen=True, slots=True)
class RenderLimits:
    operations: int  # nodes evaluated + items made + 64-character pieces of text read
    text: int  # characters of one text; all texts of a rendering may have four times as many
    items: int  # items of one list
    depth: int = 100  # nesting of a value
    bits: int = (
        64  # size of an integer that a template computes: JSON and Arrow carry 64 everywhere
    )


SERVER_LIMITS = RenderLimits(operations=100_000, text=64 * 1024, items=100_000)
WORKER_LIMITS = RenderLimits(operations=50_000_000, text=64 * 1024 * 1024, items=10_000_000)

_TEXT_BUDGET_FACTOR = 4


class Meter:
    """Counts down the budget of a rendering. Every function reports work here before it does it."""

    __slots__ = ("limits", "operations", "text")

    def __init__(self, limits: RenderLimits) -> None:
        self.limits = limits
        self.operations = limits.operations
        self.text = limits.text * _TEXT_BUDGET_FACTOR

    def spend_operations(self, count: int) -> None:
        self.operations -= count
        if self.operations < 0:
            raise LimitError(f"the template takes more than {self.limits.operations} operations")

    def spend_reading(self, size: int) -> None:
        self.spend_operations(1 + (size >> 6))

    def spend_text(self, size: int) -> None:
        self.text -= size
        if size > self.limits.text or self.text < 0:
            raise LimitError(f"the template makes more than {self.limits.text} characters of text")
        self.operations -= size >> 6

    def spend_items(self, count: int) -> None:
        if count > self.limits.items:
            raise LimitError(
                f"the template makes a list of {count} items, more than {self.limits.items}"
            )
        self.spend_operations(count)


JSON_SCALAR_TYPES = frozenset({str, int, float, bool, type(None)})
JSON_VALUE_TYPES = JSON_SCALAR_TYPES | {list, dict}


_LAZY_METHODS = tuple(
    method.__name__
    for method in (Lazy.read_member, Lazy.read_item, Lazy.read_length, Lazy.load_plain)
)
_lazy_types: dict[type, bool] = {}  # cache of `_is_lazy_type`, one entry per type in any scope


def _is_lazy_type(kind: type) -> bool:
    is_lazy_type = _lazy_types.get(kind)
    if is_lazy_type is None:
        is_lazy_type = all(callable(getattr(kind, name, None)) for name in _LAZY_METHODS)
        _lazy_types[kind] = is_lazy_type
    return is_lazy_type


def is_lazy(value: Value) -> bool:
    return type(value) not in JSON_VALUE_TYPES and _is_lazy_type(type(value))


def kind_of(value: Value) -> str:
    """Return the JSON name of a value's type, for messages. They never show Python's names."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a bool"
    if isinstance(value, (int, float)):
        return "a number"
    if isinstance(value, str):
        return "text"
    if isinstance(value, Mapping):
        return "a map"
    if isinstance(value, (list, tuple)):
        return "a list"
    return "a value that is not plain data"


def settle(value: Value) -> Value:
    """Return a value that operations can use: neither undefined nor lazy. Its parts may be lazy."""
    kind = type(value)
    if kind in JSON_VALUE_TYPES:
        return value
    if kind is Undefined:
        undefined: Undefined = value
        raise undefined.make_error()
    if _is_lazy_type(kind):
        lazy: Lazy = value
        return settle(lazy.load_plain())
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (str, int, float, list)):
        return value
    raise FailedError(f"the scope holds {kind_of(value)} ({kind.__name__})")


def to_plain(meter: Meter, value: Value, depth: int = 0) -> Value:
    """Return the value as plain JSON at every level. Counts every part; reuses unchanged parts."""
    if type(value) in JSON_SCALAR_TYPES:
        return value
    value = settle(value)
    if isinstance(value, list):
        return _plain_list(meter, value, depth)
    if isinstance(value, dict):
        return _plain_map(meter, value, depth)
    return value


def _enter_level(meter: Meter, depth: int) -> int:
    if depth >= meter.limits.depth:
        raise LimitError(f"a value is nested more than {meter.limits.depth} deep")
    return depth + 1


def _plain_list(meter: Meter, value: list[Value], depth: int) -> list[Value]:
    depth = _enter_level(meter, depth)
    meter.spend_operations(1 + len(value))
    changed: list[Value] | None = None
    for index, part in enumerate(value):
        if type(part) in JSON_SCALAR_TYPES:
            continue
        plain_part = to_plain(meter, part, depth)
        if plain_part is not part:
            if changed is None:
                changed = list(value)
            changed[index] = plain_part
    return value if changed is None else changed


def _plain_map(meter: Meter, value: dict[str, Value], depth: int) -> dict[str, Value]:
    depth = _enter_level(meter, depth)
    meter.spend_operations(1 + len(value))
    changed: dict[str, Value] | None = None
    for key, part in value.items():
        if not isinstance(key, str):
            raise FailedError(f"a map has {kind_of(key)} as a key, keys are text")
        if type(part) in JSON_SCALAR_TYPES:
            continue
        plain_part = to_plain(meter, part, depth)
        if plain_part is not part:
            if changed is None:
                changed = dict(value)
            changed[key] = plain_part
    return value if changed is None else changed


# --- parts of a value


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
    if _is_lazy_type(kind):
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
        if type(value) not in JSON_VALUE_TYPES and _is_lazy_type(type(value)):
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
        meter.spend_text(size)
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
        meter.spend_items(len(value))
        return list(value)
    raise FailedError(f"{kind_of(value)} is not a list")


# --- text

_MAX_WORD = 2**64


def write_scalar(value: Value) -> str:
    if isinstance(value, str):
        return value
    if type(value) is int and -_MAX_WORD < value < _MAX_WORD:
        return str(value)
    if value is None:
        return "null"
    if value is True:
        return "true"
    if value is False:
        return "false"
    if isinstance(value, int) and value.bit_length() > 8192:
        raise LimitError("an integer is too long to be written")
    if isinstance(value, float):
        return repr(value)
    return str(value)


def format_as_text(meter: Meter, value: Value) -> str:
    """Convert a value to text: text stays as it is, anything else becomes JSON."""
    if type(value) not in JSON_SCALAR_TYPES:
        value = settle(value)
        if isinstance(value, (list, dict)):
            return write_json(meter, value)
    return write_scalar(value)


def _estimate_json_size(meter: Meter, value: Value) -> int:
    """Estimate the characters of a plain value's JSON. `plain` has counted its parts already."""
    size = 0
    stack = [value]
    while stack:
        value = stack.pop()
        if isinstance(value, str):
            size += len(value) + 3
        elif isinstance(value, list):
            size += 2
            stack.extend(value)
        elif isinstance(value, dict):
            size += 2 + sum(len(key) + 4 for key in value)
            stack.extend(value.values())
        else:
            size += 8
        if size > meter.limits.text:
            raise LimitError(f"the template makes more than {meter.limits.text} characters of text")
    return size


def write_json(meter: Meter, value: Value, indent: int | None = None) -> str:
    value = to_plain(meter, value)
    size = _estimate_json_size(meter, value)
    if indent is not None:
        if not 0 <= indent <= 16:
            raise FailedError("indent is a number from 0 to 16")
        size *= 1 + indent
    meter.spend_text(size)
    json_text = _dump_json(value, indent)
    if len(json_text) > size:
        meter.spend_text(len(json_text) - size)
    return json_text


def _dump_json(value: Value, indent: int | None) -> str:
    if indent is None:
        try:
            return orjson.dumps(value).decode()
        except TypeError:  # integers beyond 64 bits and lone surrogates are data too
            pass
    separators = (",", ":") if indent is None else (",", ": ")
    try:
        json_text = json.dumps(
            value, ensure_ascii=False, separators=separators, indent=indent, allow_nan=False
        )
        json_text.encode()
    except UnicodeEncodeError:
        return json.dumps(value, separators=separators, indent=indent, allow_nan=False)
    except ValueError as exc:
        raise FailedError("a value cannot be written as JSON") from exc
    return json_text


# --- truth and comparison


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
    return bool(to_plain(meter, left) == to_plain(meter, right))


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
        return isinstance(value, str) and value in container
    if isinstance(container, list):
        return to_plain(meter, value) in to_plain(meter, container)
    raise FailedError(f"{kind_of(container)} cannot contain anything")


# --- arithmetic


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
        meter.spend_text(len(left) + len(right))
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
        meter.spend_text(len(value) * times)
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


def suggest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most similar to this one, or None if none is similar."""
    matches = get_close_matches(name, sorted(known), n=1, cutoff=0.6)
    return matches[0] if matches else None


def hint_at_similar_name(name: str, known: Iterable[str]) -> str | None:
    similar = suggest(name, known)
    if similar is None:
        return None
    return f"did you mean '{similar}'?"


# --- canonical text of an expression

# An ImportedName with this prefix stands for a selection. Jinja's parser never makes one.
SELECTION_PREFIX = "selection:"

_SIGNS: dict[type[nodes.Node], str] = {
    nodes.Add: "+",
    nodes.Sub: "-",
    nodes.Mul: "*",
    nodes.Div: "/",
    nodes.FloorDiv: "//",
    nodes.Mod: "%",
    nodes.Pow: "**",
    nodes.And: "and",
    nodes.Or: "or",
}
_COMPARES = {
    "eq": "==",
    "ne": "!=",
    "lt": "<",
    "lteq": "<=",
    "gt": ">",
    "gteq": ">=",
    "in": "in",
    "notin": "not in",
}
_ATOMS = (
    nodes.Name,
    nodes.Const,
    nodes.Getattr,
    nodes.Getitem,
    nodes.Call,
    nodes.List,
    nodes.Tuple,
    nodes.Dict,
)


def quote_literal(value: str) -> str:
    """Write a text literal that the lexer reads back unchanged."""
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    escaped = escaped.replace("\n", "\\n").replace("\r", "\\r")
    return f"'{escaped}'"


def write_literal(value: Value) -> str:
    if value is None:
        return "none"
    if isinstance(value, str):
        return quote_literal(value)
    return write_scalar(value)


def unparse(node: nodes.Node) -> str:
    """Write an expression in its canonical form: parsing the text again gives the same tree.

    Every compound operand is in parentheses.
    """
    match node:
        case nodes.Name():
            return node.name
        case nodes.Const():
            return write_literal(node.value)
        case nodes.Getattr():
            return f"{_write_postfix_operand(node.node)}.{node.attr}"
        case nodes.Getitem():
            return f"{_write_postfix_operand(node.node)}[{_write_index(node.arg)}]"
        case nodes.Call():
            return (
                f"{_write_postfix_operand(node.node)}({_write_arguments(node.args, node.kwargs)})"
            )
        case nodes.Filter():
            subject = ""
            if node.node is not None:
                subject = _write_operand(node.node)
            return f"{subject} | {_write_filter_or_test(node)}"
        case nodes.Test():
            return f"{_write_operand(node.node)} is {_write_filter_or_test(node)}"
        case nodes.List():
            return f"[{_write_list(node.items)}]"
        case nodes.Tuple() if len(node.items) == 1:
            return f"({unparse(node.items[0])},)"
        case nodes.Tuple():
            return f"({_write_list(node.items)})"
        case nodes.Dict():
            pairs = [f"{unparse(pair.key)}: {unparse(pair.value)}" for pair in node.items]
            return "{" + ", ".join(pairs) + "}"
        case nodes.Compare():
            comparisons = [
                f" {_COMPARES[other.op]} {_write_operand(other.expr)}" for other in node.ops
            ]
            return _write_operand(node.expr) + "".join(comparisons)
        case nodes.Concat():
            return " ~ ".join(map(_write_operand, node.nodes))
        case nodes.CondExpr():
            condition = f"{_write_operand(node.expr1)} if {_write_operand(node.test)}"
            if node.expr2 is None:
                return condition
            return f"{condition} else {_write_operand(node.expr2)}"
        case nodes.Not():
            return f"not {_write_operand(node.node)}"
        case nodes.Neg():
            return f"-{_write_operand(node.node)}"
        case nodes.Pos():
            return f"+{_write_operand(node.node)}"
        case nodes.BinExpr():
            return f"{_write_operand(node.left)} {_SIGNS[type(node)]} {_write_operand(node.right)}"
        case nodes.ImportedName():
            return f"<{node.importname}>"
        case _:
            return f"<{type(node).__name__.lower()}>"


def _write_operand(node: nodes.Expr) -> str:
    if isinstance(node, _ATOMS):
        return unparse(node)
    return f"({unparse(node)})"


def _write_postfix_operand(node: nodes.Expr) -> str:
    """Write the operand of `.member`, `[index]` or a call. A number needs parentheses: `(1).x`."""
    if isinstance(node, nodes.Const) and not isinstance(node.value, str):
        return f"({unparse(node)})"
    return _write_operand(node)


def _write_index(node: nodes.Expr) -> str:
    if not isinstance(node, nodes.Slice):
        return unparse(node)
    bounds = f"{_write_bound(node.start)}:{_write_bound(node.stop)}"
    if node.step is None:
        return bounds
    return f"{bounds}:{unparse(node.step)}"


def _write_bound(node: nodes.Expr | None) -> str:
    if node is None:
        return ""
    return unparse(node)


def _write_list(items: Sequence[nodes.Expr]) -> str:
    return ", ".join(map(unparse, items))


def _write_filter_or_test(node: nodes.Filter | nodes.Test) -> str:
    arguments = _write_arguments(node.args, node.kwargs)
    if not arguments:
        return node.name
    return f"{node.name}({arguments})"


def _write_arguments(args: Sequence[nodes.Expr], kwargs: Sequence[nodes.Node]) -> str:
    keywords = [
        f"{pair.key}={unparse(pair.value)}"
        for pair in kwargs
        if isinstance(pair, (nodes.Keyword, nodes.Pair))
    ]
    return ", ".join([*map(unparse, args), *keywords])
