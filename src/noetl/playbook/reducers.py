"""Reducers of a loop's ctx writes.

Each is associative, so any split into chunks gives the same result.

A worker folds the writes of its items, in item order, into a partial reduction. The engine combines
the partial reductions in item order and applies the result to the current value. Both use `partial`
and `combine`. A missing side changes nothing. A value that does not fit raises FailedError.
"""

from collections.abc import Callable
from typing import Any, Final

from noetl.model.envelope import MAX_SCALAR_BYTES, is_scalar
from noetl.template.errors import FailedError
from noetl.template.values import kind_of

NOTHING_FOLDED: Final = object()  # nothing folded yet; never serialised
# Reducers that may make lists and maps. Their values are passed by reference.
REFERENCE_REDUCERS = frozenset({"append", "merge", "last"})


def start_fold() -> Any:
    return NOTHING_FOLDED


def fold_write(reducer: str, folded: Any, value: Any) -> Any:
    """Add one write that is later than all writes folded so far."""
    return combine_reductions(reducer, folded, reduce_write(reducer, value))


def reduce_write(reducer: str, value: Any) -> Any:
    """Return the reduction of a single write."""
    if reducer == "append":
        return list(value) if isinstance(value, list) else [value]
    if reducer == "merge" and not isinstance(value, dict):
        raise FailedError(f"merge takes maps, not {kind_of(value)}")
    if reducer == "sum" and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise FailedError(f"sum takes numbers, not {kind_of(value)}")
    if reducer in ("min", "max") and not isinstance(value, int | float | str):
        raise FailedError(f"{reducer} takes numbers or texts, not {kind_of(value)}")
    if reducer in ("min", "max") and not is_scalar(value):
        raise FailedError(
            f"{reducer} takes texts of at most {MAX_SCALAR_BYTES} bytes, not {len(value)} characters"
        )
    if reducer not in _COMBINE:
        raise ValueError(f"{reducer!r} is not a reducer: {', '.join(sorted(_COMBINE))}")
    return value


def combine_reductions(reducer: str, left: Any, right: Any) -> Any:
    """Combine two reductions; the left one is of earlier items.

    Null on the left counts as unset.
    """
    if right is NOTHING_FOLDED:
        return left
    if left is NOTHING_FOLDED or left is None:
        return right
    try:
        return _COMBINE[reducer](left, right)
    except TypeError:
        raise FailedError(f"{reducer} cannot join {kind_of(left)} and {kind_of(right)}") from None


def apply_reduction(reducer: str, current: Any, folded: Any) -> Any:
    """Apply the reduction of a whole loop to the current value in ctx (None: there is none)."""
    if folded is NOTHING_FOLDED:
        return current
    if current is None:
        return folded
    if reducer == "append" and not isinstance(current, list):
        current = [current]
    return combine_reductions(reducer, current, folded)


def _order_key(value: Any) -> tuple[bool, Any]:
    """Order numbers before texts, so that the parts of one loop always compare."""
    return isinstance(value, str), value


def _append_lists(left: Any, right: Any) -> Any:
    return [*left, *right]


def _merge_maps(left: Any, right: Any) -> Any:
    return {**left, **right}


_COMBINE: dict[str, Callable[[Any, Any], Any]] = {
    "sum": lambda left, right: left + right,
    "min": lambda left, right: min(left, right, key=_order_key),
    "max": lambda left, right: max(left, right, key=_order_key),
    "append": _append_lists,
    "merge": _merge_maps,
    "last": lambda left, right: right,
}
