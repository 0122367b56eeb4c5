"""Kinds of failures: counted in parts and merged in any order, they are the same."""

from functools import reduce
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from noetl.model.codec import encode
from noetl.model.errors import Failure
from noetl.model.failure_kinds import (
    MAX_KINDS,
    MAX_KINDS_BYTES,
    MAX_SHAPE_CHARS,
    FailureKind,
    add_failure_kind,
    count_failure_kinds,
    make_failure_shape,
    merge_failure_kinds,
)

FEW = st.integers(0, MAX_KINDS - 1)
MANY = st.integers(0, 3 * MAX_KINDS)


def make_failures(numbers: list[int]) -> list[tuple[int, Failure]]:
    """An item for each number, which is its kind."""
    return [
        (index, Failure(code=f"C{number % 3}", message=f"{'x' * number} failed at {index}"))
        for index, number in enumerate(numbers)
    ]


def count_in_parts(failures: list[tuple[int, Failure]], seed: int) -> tuple[FailureKind, ...]:
    """Count the failures in parts of random sizes, and merge the parts in a random order."""
    random = Random(seed)
    parts: list[tuple[FailureKind, ...]] = []
    rest = failures
    while rest:
        size = random.randint(1, len(rest))
        parts.append(count_failure_kinds(rest[:size]))
        rest = rest[size:]
    random.shuffle(parts)
    return reduce(merge_failure_kinds, parts, ())


@given(st.lists(FEW, max_size=60), st.integers())
def test_kinds_are_counted_exactly_in_any_order(numbers: list[int], seed: int) -> None:
    failures = make_failures(numbers)
    whole = count_failure_kinds(failures)
    assert count_in_parts(failures, seed) == whole
    assert sum(kind.count for kind in whole) == len(failures)
    for kind in whole:
        of_kind = [
            index
            for index, failure in failures
            if (failure.code, make_failure_shape(failure.message)) == (kind.code, kind.shape)
        ]
        assert (kind.count, kind.first) == (len(of_kind), of_kind[0])


@given(st.lists(MANY, max_size=80), st.integers())
def test_of_many_kinds_those_of_the_first_items_are_kept(numbers: list[int], seed: int) -> None:
    failures = make_failures(numbers)
    whole = count_failure_kinds(failures)
    parts = count_in_parts(failures, seed)
    assert [(kind.code, kind.shape, kind.first, kind.message) for kind in parts] == [
        (kind.code, kind.shape, kind.first, kind.message) for kind in whole
    ]
    assert len(whole) <= MAX_KINDS
    for kind, exact in zip(parts, whole, strict=True):
        assert 1 <= kind.count <= exact.count


@given(st.lists(FEW, max_size=30))
def test_adding_one_by_one_counts_the_same(numbers: list[int]) -> None:
    failures = make_failures(numbers)
    kinds: tuple[FailureKind, ...] = ()
    for index, failure in reversed(failures):
        (kind,) = count_failure_kinds([(index, failure)])
        kinds = add_failure_kind(kinds, kind)
    assert kinds == count_failure_kinds(failures)


@given(st.lists(st.tuples(st.text(max_size=20), st.text(max_size=2_000)), max_size=20))
def test_kinds_always_fit_into_an_event(texts: list[tuple[str, str]]) -> None:
    failures = [
        (index, Failure(code=code, message=message)) for index, (code, message) in enumerate(texts)
    ]
    kinds = count_failure_kinds(failures)
    assert len(encode(kinds)) <= MAX_KINDS_BYTES
    assert bool(kinds) == bool(failures)
    assert all(len(kind.shape) <= MAX_SHAPE_CHARS for kind in kinds)


@given(st.integers(), st.text(st.characters(exclude_characters="'\n"), max_size=30))
def test_numbers_and_quoted_parts_do_not_make_a_kind(number: int, quoted: str) -> None:
    shape = make_failure_shape(f"cannot score {abs(number)} of '{quoted}'")
    assert shape == "cannot score … of …"
