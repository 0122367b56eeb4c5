"""The values of templates: plain JSON, undefined values, and lazy values.

An **undefined** value may be passed on and tested. `settle` is the only way to use a value, and it
refuses undefined ones. A **lazy** value stands for data that is stored elsewhere. It returns single
parts, and loads all of its data only if an operation needs it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias

from noetl.template.errors import FailedError, LimitError, UndefinedError
from noetl.template.limits import Meter

# Plain JSON, a Lazy, or (inside the evaluator) an Undefined. A precise recursive union would need a
# cast at every operation, which checks nothing. `settle` and `to_plain` check at run time.
Value: TypeAlias = Any


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


JSON_SCALAR_TYPES = frozenset({str, int, float, bool, type(None)})
JSON_VALUE_TYPES = JSON_SCALAR_TYPES | {list, dict}
MAP_ENTRY_BYTES = 100  # of a map with its share of empty places
_LAZY_METHODS = tuple(
    method.__name__
    for method in (Lazy.read_member, Lazy.read_item, Lazy.read_length, Lazy.load_plain)
)
_lazy_types: dict[type, bool] = {}  # cache of `is_lazy_type`, one entry per type in any scope


def is_lazy_type(kind: type) -> bool:
    is_lazy_type = _lazy_types.get(kind)
    if is_lazy_type is None:
        is_lazy_type = all(callable(getattr(kind, name, None)) for name in _LAZY_METHODS)
        _lazy_types[kind] = is_lazy_type
    return is_lazy_type


def is_lazy(value: Value) -> bool:
    return type(value) not in JSON_VALUE_TYPES and is_lazy_type(type(value))


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
    if is_lazy_type(kind):
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


def _plain_list(meter: Meter, value: list[Value], depth: int) -> list[Value]:
    _enter_level(meter, depth, len(value))
    changed: list[Value] | None = None
    for index, part in enumerate(value):
        kind = type(part)
        if kind in JSON_SCALAR_TYPES:
            continue
        if kind is list:
            plain_part = _plain_list(meter, part, depth + 1)
        else:
            plain_part = to_plain(meter, part, depth + 1)
        if plain_part is not part:
            if changed is None:
                meter.spend_items(len(value))
                changed = list(value)
            changed[index] = plain_part
    return value if changed is None else changed


def _plain_map(meter: Meter, value: dict[str, Value], depth: int) -> dict[str, Value]:
    _enter_level(meter, depth, len(value))
    changed: dict[str, Value] | None = None
    for key, part in value.items():
        if not isinstance(key, str):
            raise FailedError(f"a map has {kind_of(key)} as a key, keys are text")
        if type(part) in JSON_SCALAR_TYPES:
            continue
        plain_part = to_plain(meter, part, depth + 1)
        if plain_part is not part:
            if changed is None:
                meter.spend_items(len(value), MAP_ENTRY_BYTES)
                changed = dict(value)
            changed[key] = plain_part
    return value if changed is None else changed


def _enter_level(meter: Meter, depth: int, size: int) -> None:
    """Count a list or map, and the looking at its parts."""
    if depth >= meter.limits.depth:
        raise LimitError(f"a value is nested more than {meter.limits.depth} deep")
    meter.operations -= 1 + (size >> meter.limits.parts_shift)
    if meter.operations < 0:
        meter.spend_operations(0)


def refuse_undefined(value: Value) -> Value:
    """Refuse undefined in a list or map that the template makes, and in names it sets.

    Lazy is fine.
    """
    if type(value) is Undefined:
        undefined: Undefined = value
        raise undefined.make_error()
    return value
