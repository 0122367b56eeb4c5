"""Lists of records come back as they were put, whether they became columns or not."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from noetl.results.formats import records
from noetl.results.formats.tables import EncodedTable, TableOptions

names = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=4)
texts = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=8)
numbers = st.integers(-(2**63) - 2, 2**63 + 1)
floats = st.floats(allow_nan=False, allow_infinity=False)
kinds = [st.booleans(), numbers, floats, texts, st.none(), st.lists(st.integers(), max_size=2)]


@st.composite
def columns(draw: st.DrawFn) -> dict[str, st.SearchStrategy[Any]]:
    """Mostly of one kind each; some may be null, some are mixed."""
    made = {}
    for name in draw(st.lists(names, unique=True, min_size=1, max_size=4)):
        kind = draw(st.sampled_from(kinds[:5] * 3 + kinds))
        made[name] = draw(
            st.sampled_from([kind, kind | st.none(), kind, kind | draw(st.sampled_from(kinds))])
        )
    return made


@st.composite
def lists(draw: st.DrawFn) -> list[Any]:
    """A few records again and again: what they are counts, not how many are different."""
    some = draw(columns())
    drawn = draw(st.lists(st.fixed_dictionaries(some), min_size=1, max_size=5))
    if draw(st.integers(0, 5)) == 0:
        drawn.append(draw(st.dictionaries(names, texts, max_size=2)))
    return [dict(row) for row in drawn * (1 + records.MIN_RECORDS // len(drawn))]


def store_value(value: Any) -> Any:
    found = records.find_records(value)
    if found is None:
        return value
    made = records.encode_table(value, found, TableOptions())
    return made.value() if isinstance(made, EncodedTable) else made


def is_same(value: Any, found: Any) -> bool:
    """Types too, and the order of names."""
    return repr(value) == repr(found)


@given(lists())
def test_any_list_of_records_comes_back_as_it_was(value: list[Any]) -> None:
    assert is_same(value, store_value(value))


@given(lists(), st.dictionaries(names, st.integers() | texts, max_size=3), names)
def test_also_as_a_member_of_a_map(value: list[Any], rest: dict[str, Any], at: str) -> None:
    whole = {**rest, at: value}
    assert is_same(whole, store_value(whole))


def test_what_fits_becomes_columns_and_what_would_lose_something_does_not() -> None:
    many = records.MIN_RECORDS
    fitting = [{"a": 1, "b": "x", "c": 1.5, "d": True, "e": None}] * many
    assert records.find_records(fitting) is not None
    assert records.find_records({"status_code": 200, "data": fitting}) is not None
    for other in (
        fitting[1:],
        [*fitting, {"a": 1}],
        [*fitting, {"b": "x", "a": 1, "c": 1.5, "d": True, "e": None}],
        [{"a": 1}, {"a": 1.5}] * many,
        [{"a": True}, {"a": 1}] * many,
        [{"a": [1]}] * many,
        [1] * many,
        [{}] * many,
        {"a": fitting, "b": fitting},
        {"a": fitting, "text": "x" * 100_000},
    ):
        assert records.find_records(other) is None
    big = [{"a": 1}] * many + [{"a": 2**63}]
    found = records.find_records(big)
    assert found is not None
    assert records.encode_table(big, found, TableOptions()) is big
