"""Reducers: any cut of a loop into chunks folds to the same."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from noetl.playbook import reducers
from noetl.template.errors import FailedError

NUMBERS = st.integers(-100, 100)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "sum": NUMBERS,
    "min": NUMBERS | st.text(max_size=3),
    "max": NUMBERS | st.text(max_size=3),
    "append": NUMBERS | st.lists(NUMBERS, max_size=3),
    "merge": st.dictionaries(st.text(max_size=1), NUMBERS, max_size=3),
    "last": NUMBERS | st.none(),
}


def fold_values(reducer: str, values: list[Any]) -> Any:
    total = reducers.start_fold()
    for value in values:
        total = reducers.fold_write(reducer, total, value)
    return total


@pytest.mark.parametrize("reducer", sorted(VALUES))
@given(data=st.data())
def test_reducing_is_associative_over_cuts(reducer: str, data: st.DataObject) -> None:
    values = data.draw(st.lists(VALUES[reducer], min_size=1, max_size=8))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(values)), max_size=4)))
    total = reducers.start_fold()
    for low, high in zip([0, *cuts], [*cuts, len(values)], strict=True):
        total = reducers.combine_reductions(reducer, total, fold_values(reducer, values[low:high]))
    assert total == fold_values(reducer, values)


def test_a_loop_is_folded_onto_the_current_value() -> None:
    assert reducers.apply_reduction("sum", 5, 3) == 8
    assert reducers.apply_reduction("sum", None, 3) == 3
    assert reducers.apply_reduction("append", [1], [2]) == [1, 2]
    assert reducers.apply_reduction("append", 1, [2]) == [1, 2]
    assert reducers.apply_reduction("last", 1, 2) == 2


@pytest.mark.parametrize(
    ("reducer", "value"), [("sum", "x"), ("sum", True), ("merge", [1]), ("min", None)]
)
def test_what_does_not_fit_is_refused(reducer: str, value: Any) -> None:
    with pytest.raises(FailedError):
        reducers.reduce_write(reducer, value)
    with pytest.raises(FailedError):
        reducers.apply_reduction("sum", "text", 1)
