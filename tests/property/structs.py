"""Strategies for msgspec types, built from the types themselves: a new event, message or command is covered by existing."""

from functools import cache
from typing import Any

import msgspec.inspect as inspect
from hypothesis import strategies as st

small_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False) | small_text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(small_text, inner, max_size=3),
    max_leaves=5,
)  # fmt: skip


@cache
def of(kind: Any) -> st.SearchStrategy[Any]:
    """Values of a type that msgspec can encode."""
    return _strategy(inspect.type_info(kind))


def _strategy(info: inspect.Type) -> st.SearchStrategy[Any]:
    match info:
        case inspect.AnyType():
            return json_values
        case inspect.NoneType():
            return st.none()
        case inspect.BoolType():
            return st.booleans()
        case inspect.IntType():
            return st.integers(0, 2**62)
        case inspect.FloatType():
            return st.floats(allow_nan=False, allow_infinity=False)
        case inspect.StrType():
            return small_text
        case inspect.BytesType():
            return st.binary(max_size=12)
        case inspect.LiteralType(values=values):
            return st.sampled_from(values)
        case inspect.UnionType(types=types):
            return st.one_of(*map(_strategy, types))
        case inspect.VarTupleType(item_type=item):
            return st.lists(st.deferred(lambda: _strategy(item)), max_size=2).map(tuple)
        case inspect.TupleType(item_types=items):
            return st.tuples(*map(_strategy, items))
        case inspect.ListType(item_type=item):
            return st.lists(st.deferred(lambda: _strategy(item)), max_size=2)
        case inspect.DictType(key_type=key, value_type=value):
            return st.dictionaries(
                _strategy(key), st.deferred(lambda: _strategy(value)), max_size=2
            )
        case inspect.StructType(cls=cls, fields=fields):
            required = {
                f.name: st.deferred(lambda t=f.type: _strategy(t)) for f in fields if f.required
            }
            optional = {
                f.name: st.deferred(lambda t=f.type: _strategy(t)) for f in fields if not f.required
            }
            return st.fixed_dictionaries(required, optional=optional).map(
                lambda values: cls(**values)
            )
        case _:
            raise NotImplementedError(f"no strategy for {info}")
