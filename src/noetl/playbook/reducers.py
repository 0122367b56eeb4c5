"""Reducers of a loop's ctx writes. Each is associative over consecutive items: any cut into chunks folds to the same.

A worker folds the writes of its items, in item order, into a partial; the engine combines partials in item order and folds the
result onto the current value. `partial` and `combine` are the same functions for both. A missing side changes nothing.
Values that do not fit their reducer raise FailedError.
"""

from collections.abc import Callable
from typing import Any, Final

from noetl.model.envelope import SCALAR_LIMIT, is_scalar
from noetl.playbook.expressions import FailedError, kind_of

MISSING: Final = object()  # nothing folded yet; never leaves a process
GATHERING = frozenset(
    {"append", "merge", "last"}
)  # their reductions may be lists and maps: they travel by reference


def start() -> Any:
    return MISSING


def fold(reducer: str, folded: Any, value: Any) -> Any:
    """One more write, later than everything folded so far."""
    return combine(reducer, folded, partial(reducer, value))


def partial(reducer: str, value: Any) -> Any:
    """The reduction of a single write."""
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
            f"{reducer} takes texts of at most {SCALAR_LIMIT} bytes, not {len(value)} characters"
        )
    if reducer not in _COMBINE:
        raise ValueError(f"{reducer!r} is not a reducer: {', '.join(sorted(_COMBINE))}")
    return value


def combine(reducer: str, left: Any, right: Any) -> Any:
    """Two reductions, the left one of earlier items. A null on the left is a value nobody has set yet."""
    if right is MISSING:
        return left
    if left is MISSING or left is None:
        return right
    try:
        return _COMBINE[reducer](left, right)
    except TypeError:
        raise FailedError(f"{reducer} cannot join {kind_of(left)} and {kind_of(right)}") from None


def onto(reducer: str, current: Any, folded: Any) -> Any:
    """The reduction of a whole loop, folded onto the value that ctx has now (None: it has none)."""
    if folded is MISSING or current is None:
        return current if folded is MISSING else folded
    return combine(
        reducer, current if reducer != "append" or isinstance(current, list) else [current], folded
    )


def _order(value: Any) -> tuple[bool, Any]:
    """Numbers before texts: parts of one loop always compare, whatever their items wrote."""
    return isinstance(value, str), value


def _append(left: Any, right: Any) -> Any:
    return [*left, *right]


def _merge(left: Any, right: Any) -> Any:
    return {**left, **right}


_COMBINE: dict[str, Callable[[Any, Any], Any]] = {
    "sum": lambda left, right: left + right,
    "min": lambda left, right: min(left, right, key=_order),
    "max": lambda left, right: max(left, right, key=_order),
    "append": _append,
    "merge": _merge,
    "last": lambda left, right: right,
}
