"""Values, errors and operations of the template language.

Jinja2 is only the parser; what an expression *means* is here and nowhere else. The sandbox holds by construction: a
value is plain JSON, a member is a key or an index, and no Python attribute is ever reached by a name that a template
wrote. Work is bounded by counting, before anything is allocated, so the same template over the same scope fails or
succeeds alike on every machine and in every replay.

An **undefined** value may be carried and asked about; `settle` is the one door to using it, and refuses. A **lazy**
value stands for data elsewhere; it answers questions about its parts and is resolved whole only when an operation needs
that.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Literal, Protocol, TypeAlias

import orjson
from jinja2 import nodes

from noetl.model.errors import NoetlError

# Plain JSON, a Lazy, or (inside the evaluator) an Undefined. A precise recursive union would need a cast at every
# operation, which checks nothing: `settle` and `plain` check at run time.
Value: TypeAlias = Any


class TemplateError(NoetlError):
    """Anything that is wrong with a template or its evaluation.

    TemplateError
    ├── TemplateSyntaxError   TEMPLATE_SYNTAX      it does not parse, or names what does not exist
    ├── UndefinedError        TEMPLATE_UNDEFINED   a missing name or member was used
    ├── LimitError            TEMPLATE_LIMIT       it would cost more than allowed
    ├── ForbiddenError        TEMPLATE_FORBIDDEN   a part of Jinja this language leaves out
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
        self.path = ""  # of the template in the structure that is rendered: `.rows[2].id`

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


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
        about = f"'{expression}' cannot be used: " if expression != missing else ""
        reason = f", because {because}" if because else ""
        hint = "test it with 'is defined' or give default(...)"
        super().__init__(f"{about}'{missing}' is undefined{reason}", hint=hint)
        self.expression = expression
        self.missing = missing
        self.because = because


class NeedsData(Exception):
    """Raised by a Lazy whose data is not here yet; passes through the evaluator to the caller, who tries again."""

    def __init__(self, request: object) -> None:
        super().__init__(request)
        self.request = request


@dataclass(frozen=True, slots=True)
class Undefined:
    """What a missing name or member evaluates to: the expression asked for, and its first part that is missing.

    `absent` says that it is missing because there is nothing to tell, not because nobody knows the name. A truth test takes such
    a value for false. `error`: the call did not fail; comparing any field of its error gives false (and `!=` true). `step`: the
    step has not run, or it (or the task) failed: `because` says so, and `facts` are the members that can be read all the same,
    such as `status` and `error`.
    """

    expression: str
    missing: str
    absent: Literal["", "error", "step"] = ""
    because: str = ""
    facts: Mapping[str, Value] | None = field(default=None, compare=False, repr=False)

    def error(self) -> UndefinedError:
        return UndefinedError(self.expression, self.missing, self.because)

    def fact(self, name: str, expression: str) -> Value:
        """A member: one of the facts, or missing for the same reason."""
        if self.facts is None or name not in self.facts:
            return self
        found = self.facts[name]
        return (
            Undefined(expression, expression, found.absent) if type(found) is Undefined else found
        )


def without_value(name: str, because: str, facts: Mapping[str, Value]) -> Undefined:
    """The value of a step or task that failed. Its facts are those that are known."""
    known = {fact: value for fact, value in facts.items() if value is not None}
    return Undefined(name, name, "step", because, {"error": NO_ERROR, **known})


NO_ERROR = Undefined("error", "error", "error")
NONE_UNDEFINED: Mapping[str, Undefined] = {}


class OptionalMap(dict[str, Value]):
    """A map with keys that are there only after a failure, such as `error` of `output`: missing, they are absent. `undefined`
    are keys without a value, such as `data` of `output` after a failure: they are no part of the map as a whole."""

    __slots__ = ("optional", "undefined")

    def __init__(
        self,
        values: Mapping[str, Value],
        *optional: str,
        undefined: Mapping[str, Undefined] = NONE_UNDEFINED,
    ) -> None:
        super().__init__(values)
        self.optional = optional
        self.undefined = undefined


class Lazy(Protocol):
    """Data by reference. A missing member or index raises LookupError; data not yet here raises NeedsData."""

    def member(self, name: str) -> Value: ...
    def item(self, index: int | slice) -> Value: ...
    def length(self) -> int: ...
    def plain(self) -> Value: ...


class Functions(Protocol):
    """What a template cannot know by itself. `nth` counts the calls within one rendering: evaluating again agrees."""

    def now(self) -> str: ...
    def uuid(self, nth: int) -> str: ...
    def random(self, nth: int) -> float: ...


@dataclass(frozen=True, slots=True)
class RenderLimits:
    operations: int  # nodes evaluated, items made, 64-character pieces of text read
    text: int  # characters of one text; all texts of one rendering together may have four times as many
    items: int  # items of one list
    depth: int = 100  # nesting of a value
    bits: int = (
        64  # of an integer that a template computes: what JSON and Arrow can carry everywhere
    )


SERVER_LIMITS = RenderLimits(operations=100_000, text=64 * 1024, items=100_000)
WORKER_LIMITS = RenderLimits(operations=50_000_000, text=64 * 1024 * 1024, items=10_000_000)

_ALL_TEXTS = 4


class Meter:
    """Counts down. Every function that makes or walks something says so here first."""

    __slots__ = ("limits", "operations", "text")

    def __init__(self, limits: RenderLimits) -> None:
        self.limits = limits
        self.operations = limits.operations
        self.text = limits.text * _ALL_TEXTS

    def work(self, count: int) -> None:
        self.operations -= count
        if self.operations < 0:
            raise LimitError(f"the template takes more than {self.limits.operations} operations")

    def read(self, size: int) -> None:
        self.work(1 + (size >> 6))

    def make_text(self, size: int) -> None:
        self.text -= size
        if size > self.limits.text or self.text < 0:
            raise LimitError(f"the template makes more than {self.limits.text} characters of text")
        self.operations -= size >> 6

    def make_items(self, count: int) -> None:
        if count > self.limits.items:
            raise LimitError(
                f"the template makes a list of {count} items, more than {self.limits.items}"
            )
        self.work(count)


SCALARS = frozenset({str, int, float, bool, type(None)})
PLAIN = SCALARS | {list, dict}


_lazy_types: dict[
    type, bool
] = {}  # what was found out about a type; as many entries as a scope has types


def _is_lazy_type(kind: type) -> bool:
    known = _lazy_types.get(kind)
    if known is None:
        known = all(
            callable(getattr(kind, name, None)) for name in ("member", "item", "length", "plain")
        )
        _lazy_types[kind] = known
    return known


def is_lazy(value: Value) -> bool:
    return type(value) not in PLAIN and _is_lazy_type(type(value))


def kind_of(value: Value) -> str:
    """The JSON name of a value's type, for messages: never a Python representation."""
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
    """The value for use: not undefined, no longer lazy, one of the plain types at its top."""
    kind = type(value)
    if kind in PLAIN:
        return value
    if kind is Undefined:
        raise value.error()
    if _is_lazy_type(kind):
        return settle(value.plain())
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (str, int, float, list)):
        return value
    raise FailedError(f"the scope holds {kind_of(value)} ({kind.__name__})")


def plain(meter: Meter, value: Value, depth: int = 0) -> Value:
    """The value as plain JSON all the way down, every part counted; shares what needs no change."""
    if type(value) in SCALARS:
        return value
    value = settle(value)
    if isinstance(value, list):
        return _plain_list(meter, value, depth)
    if isinstance(value, dict):
        return _plain_map(meter, value, depth)
    return value


def _deeper(meter: Meter, depth: int) -> int:
    if depth >= meter.limits.depth:
        raise LimitError(f"a value is nested more than {meter.limits.depth} deep")
    return depth + 1


def _plain_list(meter: Meter, value: list[Value], depth: int) -> list[Value]:
    depth = _deeper(meter, depth)
    meter.work(1 + len(value))
    changed: list[Value] | None = None
    for index, part in enumerate(value):
        if type(part) in SCALARS:
            continue
        made = plain(meter, part, depth)
        if made is not part:
            if changed is None:
                changed = list(value)
            changed[index] = made
    return value if changed is None else changed


def _plain_map(meter: Meter, value: dict[str, Value], depth: int) -> dict[str, Value]:
    depth = _deeper(meter, depth)
    meter.work(1 + len(value))
    changed: dict[str, Value] | None = None
    for key, part in value.items():
        if not isinstance(key, str):
            raise FailedError(f"a map has {kind_of(key)} as a key, keys are text")
        if type(part) in SCALARS:
            continue
        made = plain(meter, part, depth)
        if made is not part:
            if changed is None:
                changed = dict(value)
            changed[key] = made
    return value if changed is None else changed


# --- parts of a value


def member(value: Value, name: str, expression: str) -> Value:
    kind = type(value)
    if kind is dict:
        return value[name] if name in value else Undefined(expression, expression)
    if kind is Undefined:
        return value.fact(name, expression)
    if kind in PLAIN:
        return Undefined(expression, expression)
    if _is_lazy_type(kind):
        try:
            found = value.member(name)
        except LookupError:
            return Undefined(expression, expression)
        if type(found) is not Undefined or found.facts is not None:
            return found
        return Undefined(expression, expression, found.absent)
    if isinstance(value, Mapping) and name in value:
        return value[name]
    if kind is OptionalMap and name in value.undefined:
        return value.undefined[name]
    absent = kind is OptionalMap and name in value.optional
    return Undefined(expression, expression, "error" if absent else "")


def item(value: Value, key: Value, expression: str) -> Value:
    """`value[key]`: a member when the key is text, a position when it is an integer; anything else is missing."""
    if isinstance(key, str):
        return member(value, key, expression)
    if type(value) is Undefined:
        return value
    if not isinstance(key, int) or isinstance(key, bool):
        raise FailedError(f"{kind_of(key)} cannot be an index in '{expression}'")
    try:
        if type(value) in PLAIN or isinstance(value, (str, list, tuple)):
            return (
                value[key]
                if isinstance(value, (str, list, tuple))
                else Undefined(expression, expression)
            )
        if _is_lazy_type(type(value)):
            return value.item(key)
    except LookupError:
        pass
    return Undefined(expression, expression)


def part(meter: Meter, value: Value, bounds: slice, expression: str) -> Value:
    """`value[start:stop:step]` of text or a list."""
    if is_lazy(value):
        try:
            return value.item(bounds)
        except LookupError:
            return Undefined(expression, expression)
    value = settle(value)
    if not isinstance(value, (str, list)):
        raise FailedError(f"{kind_of(value)} has no slices, in '{expression}'")
    size = len(range(*bounds.indices(len(value))))
    if isinstance(value, str):
        meter.make_text(size)
    else:
        meter.make_items(size)
    return value[bounds]


def dotted(value: Value, path: str | int, expression: str = "") -> Value:
    """Follow `a.b.0` as the `attribute` of filters names it."""
    if isinstance(path, int):
        return item(value, path, expression or str(path))
    for name in path.split("."):
        index = name.isascii() and name.isdigit()
        value = (
            item(value, int(name), path)
            if index and not isinstance(value, Mapping)
            else member(value, name, path)
        )
    return value


def length(value: Value) -> int:
    if is_lazy(value):
        return int(value.length())
    if isinstance(value, (str, list, tuple, Mapping)):
        return len(value)
    value = settle(value)
    raise FailedError(f"{kind_of(value)} has no length")


def elements(meter: Meter, value: Value) -> list[Value]:
    """What a loop or a filter goes through: items of a list, keys of a map, characters of a text. Not to be changed."""
    value = settle(value)
    if isinstance(value, list):
        meter.work(1 + len(value))
        return value
    if isinstance(value, (str, dict)):
        meter.make_items(len(value))
        return list(value)
    raise FailedError(f"{kind_of(value)} is not a list")


# --- text

_WORD = 2**64


def scalar_text(value: Value) -> str:
    if isinstance(value, str):
        return value
    if type(value) is int and -_WORD < value < _WORD:
        return str(value)
    if value is None:
        return "null"
    if value is True:
        return "true"
    if value is False:
        return "false"
    if isinstance(value, int) and value.bit_length() > 8192:
        raise LimitError("an integer is too long to be written")
    return repr(value) if isinstance(value, float) else str(value)


def text(meter: Meter, value: Value) -> str:
    """How a value looks inside text: text as it is, numbers as JSON, true/false/null, maps and lists as JSON."""
    if type(value) not in SCALARS:
        value = settle(value)
        if isinstance(value, (list, dict)):
            return to_json(meter, value)
    return scalar_text(value)


def _measure(meter: Meter, value: Value) -> int:
    """About how many characters the JSON of a plain value has; `plain` has counted its parts already."""
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


def to_json(meter: Meter, value: Value, indent: int | None = None) -> str:
    value = plain(meter, value)
    size = _measure(meter, value)
    if indent is not None:
        if not 0 <= indent <= 16:
            raise FailedError("indent is a number from 0 to 16")
        size *= 1 + indent
    meter.make_text(size)
    made = _dump(value, indent)
    if len(made) > size:
        meter.make_text(len(made) - size)
    return made


def _dump(value: Value, indent: int | None) -> str:
    if indent is None:
        try:
            return orjson.dumps(value).decode()
        except TypeError:  # integers beyond 64 bits and lone surrogates are data too
            pass
    separators = (",", ":") if indent is None else (",", ": ")
    try:
        made = json.dumps(
            value, ensure_ascii=False, separators=separators, indent=indent, allow_nan=False
        )
        made.encode()
    except UnicodeEncodeError:
        return json.dumps(value, separators=separators, indent=indent, allow_nan=False)
    except ValueError as exc:
        raise FailedError("a value cannot be written as JSON") from exc
    return made


# --- truth and comparison


def truth(value: Value) -> bool:
    if type(value) is Undefined and value.absent:
        return False
    return bool(settle(value))


def is_no_error(value: Value) -> bool:
    """Whether it is the error, or a part of the error, of a call that did not fail."""
    return type(value) is Undefined and value.absent == "error"


def equal(meter: Meter, left: Value, right: Value) -> bool:
    left, right = settle(left), settle(right)
    if isinstance(left, str) and isinstance(right, str):
        meter.read(min(len(left), len(right)))
    if type(left) in SCALARS or type(right) in SCALARS:
        return bool(left == right)
    return bool(plain(meter, left) == plain(meter, right))


def compare(meter: Meter, left: Value, right: Value) -> int:
    """Negative, zero, positive. Only numbers with numbers and text with text have an order."""
    left, right = settle(left), settle(right)
    if isinstance(left, str) and isinstance(right, str):
        meter.read(min(len(left), len(right)))
    elif not (isinstance(left, (int, float)) and isinstance(right, (int, float))):
        raise FailedError(f"{kind_of(left)} and {kind_of(right)} have no order")
    return int(left > right) - int(left < right)


def contains(meter: Meter, container: Value, value: Value) -> bool:
    container, value = settle(container), settle(value)
    if isinstance(container, str):
        if not isinstance(value, str):
            raise FailedError(f"text cannot contain {kind_of(value)}")
        meter.read(len(container) + len(value))
        return value in container
    if isinstance(container, dict):
        return isinstance(value, str) and value in container
    if isinstance(container, list):
        return plain(meter, value) in plain(meter, container)
    raise FailedError(f"{kind_of(container)} cannot contain anything")


# --- arithmetic


def _number(value: Value) -> bool:
    return isinstance(value, (int, float))


def checked(meter: Meter, value: Value) -> Value:
    """A computed number: real, finite, and within the bits JSON carries everywhere."""
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
    meter: Meter, sign: str, left: Value, right: Value, operation: Callable[[Any, Any], Any]
) -> Value:
    if not (_number(left) and _number(right)):
        raise FailedError(f"{kind_of(left)} {sign} {kind_of(right)} has no meaning")
    _operands(meter, left, right)
    try:
        return checked(meter, operation(left, right))
    except ZeroDivisionError:
        raise FailedError("division by zero") from None
    except (OverflowError, ValueError):
        raise FailedError("the result is not a finite number") from None


def _operands(meter: Meter, *numbers: Value) -> None:
    # Data may hold longer integers; computing with them is refused: no operation is more than a few words of work.
    for number in numbers:
        if isinstance(number, int) and number.bit_length() > meter.limits.bits:
            raise LimitError(f"an integer takes more than {meter.limits.bits} bits")


def add(meter: Meter, left: Value, right: Value) -> Value:
    left, right = settle(left), settle(right)
    if isinstance(left, str) and isinstance(right, str):
        meter.make_text(len(left) + len(right))
        return left + right
    if isinstance(left, list) and isinstance(right, list):
        meter.make_items(len(left) + len(right))
        return left + right
    return _compute(meter, "+", left, right, lambda a, b: a + b)


def subtract(meter: Meter, left: Value, right: Value) -> Value:
    return _compute(meter, "-", settle(left), settle(right), lambda a, b: a - b)


def multiply(meter: Meter, left: Value, right: Value) -> Value:
    left, right = settle(left), settle(right)
    if isinstance(left, int) and isinstance(right, (str, list)):
        left, right = right, left
    if isinstance(left, (str, list)) and isinstance(right, int):
        return repeat(meter, left, right)
    return _compute(meter, "*", left, right, lambda a, b: a * b)


def repeat(meter: Meter, value: str | list[Value], times: int) -> Value:
    times = max(times, 0)
    if isinstance(value, str):
        meter.make_text(len(value) * times)
        return value * times
    before = meter.operations
    plain(meter, value)  # what one copy weighs in full: repeated repetition grows as a power
    weight = before - meter.operations
    meter.make_items(len(value) * times)
    meter.work(weight * times)
    return value * times


def divide(meter: Meter, left: Value, right: Value) -> Value:
    return _compute(meter, "/", settle(left), settle(right), lambda a, b: a / b)


def floor_divide(meter: Meter, left: Value, right: Value) -> Value:
    return _compute(meter, "//", settle(left), settle(right), lambda a, b: a // b)


def modulo(meter: Meter, left: Value, right: Value) -> Value:
    left, right = settle(left), settle(right)
    if isinstance(left, str):
        raise ForbiddenError("text cannot be formatted with %", hint="join parts with ~")
    return _compute(meter, "%", left, right, lambda a, b: a % b)


def power(meter: Meter, left: Value, right: Value) -> Value:
    left, right = settle(left), settle(right)
    if isinstance(left, int) and isinstance(right, int) and abs(left) > 1:
        if left.bit_length() * max(right, 0) > 2 * meter.limits.bits:
            raise LimitError(f"an integer takes more than {meter.limits.bits} bits")
        if right < -1100:
            return 0.0
    return _compute(meter, "**", left, right, lambda a, b: a**b)


def negate(meter: Meter, value: Value) -> Value:
    return _compute(meter, "-", 0, settle(value), lambda a, b: -b)


def affirm(meter: Meter, value: Value) -> Value:
    return _compute(meter, "+", 0, settle(value), lambda a, b: +b)


def suggest(name: str, known: Iterable[str]) -> str | None:
    """The known name that was probably meant."""
    found = get_close_matches(name, sorted(known), n=1, cutoff=0.6)
    return found[0] if found else None


# --- canonical text of an expression

SELECTION = "selection:"  # an ImportedName with this prefix stands for a part that was cut out; the parser makes none

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


def quote(value: str) -> str:
    """A text literal that the lexer reads back unchanged."""
    return (
        "'"
        + value.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n").replace("\r", "\\r")
        + "'"
    )


def literal(value: Value) -> str:
    if value is None:
        return "none"
    return quote(value) if isinstance(value, str) else scalar_text(value)


def unparse(node: nodes.Node) -> str:
    """Canonical text: every compound operand in parentheses, so parsing it again gives the same tree."""
    match node:
        case nodes.Name():
            return node.name
        case nodes.Const():
            return literal(node.value)
        case nodes.Getattr():
            return f"{_postfixed(node.node)}.{node.attr}"
        case nodes.Getitem():
            inside = _bounds(node.arg) if isinstance(node.arg, nodes.Slice) else unparse(node.arg)
            return f"{_postfixed(node.node)}[{inside}]"
        case nodes.Call():
            return f"{_postfixed(node.node)}({_arguments(node.args, node.kwargs)})"
        case nodes.Filter():
            arguments = _arguments(node.args, node.kwargs)
            subject = _operand(node.node) if node.node is not None else ""
            return f"{subject} | {node.name}" + (f"({arguments})" if arguments else "")
        case nodes.Test():
            arguments = _arguments(node.args, node.kwargs)
            return f"{_operand(node.node)} is {node.name}" + (f"({arguments})" if arguments else "")
        case nodes.List():
            return f"[{', '.join(map(unparse, node.items))}]"
        case nodes.Tuple():
            return f"({', '.join(map(unparse, node.items))}{',' if len(node.items) == 1 else ''})"
        case nodes.Dict():
            return (
                "{"
                + ", ".join(f"{unparse(pair.key)}: {unparse(pair.value)}" for pair in node.items)
                + "}"
            )
        case nodes.Compare():
            rest = "".join(
                f" {_COMPARES[operand.op]} {_operand(operand.expr)}" for operand in node.ops
            )
            return _operand(node.expr) + rest
        case nodes.Concat():
            return " ~ ".join(map(_operand, node.nodes))
        case nodes.CondExpr():
            otherwise = f" else {_operand(node.expr2)}" if node.expr2 is not None else ""
            return f"{_operand(node.expr1)} if {_operand(node.test)}{otherwise}"
        case nodes.Not():
            return f"not {_operand(node.node)}"
        case nodes.Neg():
            return f"-{_operand(node.node)}"
        case nodes.Pos():
            return f"+{_operand(node.node)}"
        case nodes.BinExpr():
            return f"{_operand(node.left)} {_SIGNS[type(node)]} {_operand(node.right)}"
        case nodes.ImportedName():
            return f"<{node.importname}>"
        case _:
            return f"<{type(node).__name__.lower()}>"


def _operand(node: nodes.Expr) -> str:
    return unparse(node) if isinstance(node, _ATOMS) else f"({unparse(node)})"


def _postfixed(node: nodes.Expr) -> str:
    number = isinstance(node, nodes.Const) and not isinstance(node.value, str)
    return f"({unparse(node)})" if number else _operand(node)


def _bounds(node: nodes.Slice) -> str:
    start, stop = (unparse(bound) if bound is not None else "" for bound in (node.start, node.stop))
    return f"{start}:{stop}" + (f":{unparse(node.step)}" if node.step is not None else "")


def _arguments(args: Sequence[nodes.Expr], kwargs: Sequence[nodes.Node]) -> str:
    named = (
        f"{pair.key}={unparse(pair.value)}"
        for pair in kwargs
        if isinstance(pair, (nodes.Keyword, nodes.Pair))
    )
    return ", ".join([*map(unparse, args), *map(str, named)])
