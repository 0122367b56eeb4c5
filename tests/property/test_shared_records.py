"""Records that Python children share as columns are exactly those that JSON would bring."""

import json
import os
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from noetl.results.formats import column_buffers, records
from noetl.results.formats.column_buffers import MIN_SHARED_RECORDS, read_shared_records
from noetl.results.formats.rowsets import open_table_reader
from noetl.results.formats.shared_records import SharedRecords, open_shared_records
from noetl.results.formats.tables import ArrowRecords, EncodedTable, TableOptions, ValueHead
from noetl.tools.python import child
from noetl.tools.python.messages import PythonAnswer
from tests.examples import count_examples

LIMIT = 64 << 20


class Number(int):
    """A number of a data library."""


names = st.text(max_size=4) | st.sampled_from(["a", "b", "1"])
texts = st.text(max_size=8)  # also lone surrogates
ints = st.integers(-100, 100) | st.integers(-(2**63) - 2, 2**64 + 1)
floats = st.floats() | st.floats(allow_nan=False, allow_infinity=False)
plain_kinds = [st.booleans(), ints, floats, texts, st.none()]
odd_kinds = [
    st.lists(ints, max_size=2),
    st.dictionaries(names, ints, max_size=2),
    st.sampled_from([date(2030, 1, 2), datetime(2030, 1, 2, tzinfo=UTC), Decimal("1.10")]),
    st.sampled_from([b"bytes", Number(3), {1, 2}, object()]),
]


@st.composite
def columns(draw: st.DrawFn) -> dict[Any, st.SearchStrategy[Any]]:
    """Mostly of one kind each; some may be null, some are mixed."""
    kinds_by_name = {}
    for name in draw(st.lists(names, unique=True, max_size=4)):
        kind = draw(st.sampled_from(plain_kinds * 3 + odd_kinds))
        other = draw(st.sampled_from(plain_kinds))
        kinds_by_name[name] = draw(st.sampled_from([kind, kind | st.none(), kind, kind | other]))
    return kinds_by_name


@st.composite
def long_lists(draw: st.DrawFn) -> list[Any]:
    """A few records again and again: what they are counts, not how many are different."""
    some = draw(columns())
    drawn: list[Any] = draw(st.lists(st.fixed_dictionaries(some), min_size=1, max_size=5))
    if draw(st.integers(0, 5)) == 0:
        drawn.append(draw(st.dictionaries(names | st.integers(0, 2), texts, max_size=2) | ints))
    return drawn * (1 + MIN_SHARED_RECORDS // len(drawn))


def answer_as_json(value: Any) -> PythonAnswer:
    return msgspec.json.decode(child.encode_value(value), type=PythonAnswer)


def answer_with_columns(value: Any) -> PythonAnswer:
    """The answer as the worker sees it, with its records as Python objects."""
    encoded, descriptor = child.encode_or_share(value, LIMIT)
    answer = msgspec.json.decode(encoded, type=PythonAnswer)
    if descriptor is None:
        assert answer.layout is None
        return answer
    assert answer.layout is not None
    arrow = open_answer(answer, descriptor)
    return PythonAnswer(arrow.value())


def open_answer(answer: PythonAnswer, descriptor: int) -> ArrowRecords:
    assert answer.layout is not None
    head = ValueHead() if answer.at is None else ValueHead(answer.at, answer.value)
    return open_shared_records(SharedRecords(descriptor, answer.layout, head), 1 << 30)


def is_same(value: Any, found: Any) -> bool:
    """Types too, and the order of names."""
    return repr(value) == repr(found)


@settings(max_examples=count_examples(100))
@given(long_lists())
def test_columns_bring_exactly_what_json_brings(value: list[Any]) -> None:
    assert is_same(answer_as_json(value), answer_with_columns(value))


@given(long_lists(), st.dictionaries(names, ints | floats | texts, max_size=3), names)
def test_columns_bring_a_member_of_a_map_like_json(
    value: list[Any], rest: dict[str, Any], at: str
) -> None:
    whole = {**rest, at: value}
    assert is_same(answer_as_json(whole), answer_with_columns(whole))


@settings(max_examples=count_examples(80))
@given(long_lists())
def test_stored_rows_reach_the_next_child_exactly_as_json(value: list[Any]) -> None:
    encoded, descriptor = child.encode_or_share(value, LIMIT)
    if descriptor is None:
        return
    answer = msgspec.json.decode(encoded, type=PythonAnswer)
    table = records.encode_arrow_records(open_answer(answer, descriptor), TableOptions())
    assert isinstance(table, EncodedTable)
    shared = open_table_reader(table).share_rows()
    layout = msgspec.to_builtins(shared.layout)
    found = read_shared_records(shared.descriptor, json.loads(json.dumps(layout)))
    assert is_same(json.loads(msgspec.json.encode(answer_as_json(value).value)), found)


@given(long_lists())
def test_columns_are_stored_exactly_when_json_would_be(value: list[Any]) -> None:
    """The stored form of a result does not depend on how it came."""
    encoded, descriptor = child.encode_or_share(value, LIMIT)
    answer = answer_as_json(value)
    if descriptor is not None:
        os.close(descriptor)
        assert records.find_records(answer.value) is not None
    elif answer.error is None:
        found = records.find_records(answer.value)
        if found is not None:  # only what became flat by its encoding, such as dates
            assert encoded == child.encode_value(value)


def test_a_list_near_the_limit_is_left_to_the_json_encoder() -> None:
    rows = [{"text": 'a"\n' * 10, "number": 7, "float": 1.5, "bool": True, "null": None}] * 2_000
    size = len(child.encode_value(rows))
    shared = column_buffers.share_records(rows, 4 * size)
    assert shared is not None
    os.close(shared[0])
    assert column_buffers.share_records(rows, size - 1) is None
