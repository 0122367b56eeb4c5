"""Codecs round-trip, references never escape, ids are unique and in order, shards are in range: for all values."""

import itertools
import re
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from noetl.model import codec
from noetl.model.commands import Command
from noetl.model.decisions import Effect
from noetl.model.envelope import Envelope
from noetl.model.errors import BadReference, CorruptLog
from noetl.model.events import Event
from noetl.model.exchange import ExchangeReply, ExchangeRequest
from noetl.model.ids import Snowflakes, activation_id, command_id, derive_id, shard_of, timer_id
from noetl.model.messages import Message
from noetl.model.reference import make_address, make_result_key, parse_uri
from tests.examples import count_examples
from tests.property.structs import of, small_text

EVENTS = get_args(Event)
MESSAGES = get_args(Message)
snowflakes = st.integers(1, 2**63 - 1).map(str)


@pytest.mark.parametrize("kind", EVENTS, ids=lambda kind: kind.__struct_config__.tag)
def test_every_event_survives_the_codec(kind: Any) -> None:
    @settings(max_examples=count_examples(10))
    @given(of(kind))
    def holds(event: Event) -> None:
        assert codec.decode_event(codec.encode(event)) == event

    holds()


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__struct_config__.tag)
def test_every_message_survives_the_codec(kind: Any) -> None:
    @settings(max_examples=count_examples(10))
    @given(of(kind))
    def holds(message: Message) -> None:
        again = codec.decode_message(codec.encode(message))
        assert again == message
        assert again.key == message.key

    holds()


@settings(max_examples=count_examples(30))
@given(of(Command))
def test_a_command_survives_the_codec(command: Command) -> None:
    assert codec.decode_command(codec.encode(command)) == command


@pytest.mark.parametrize(
    "kind",
    [Envelope, ExchangeRequest, ExchangeReply, *get_args(Effect)],
    ids=lambda kind: kind.__name__,
)
def test_whatever_travels_survives_encoding(kind: Any) -> None:
    @settings(max_examples=count_examples(6))
    @given(of(kind))
    def holds(value: Any) -> None:
        assert msgspec.json.decode(codec.encode(value), type=kind) == value

    holds()


@settings(max_examples=count_examples(30))
@given(of(Event), of(Event))
def test_the_key_does_not_depend_on_when(first: Any, second: Any) -> None:
    assert msgspec.structs.replace(first, at=second.at).key == first.key


@given(st.binary(max_size=200) | small_text.map(str.encode))
def test_bytes_that_are_no_event_are_a_corrupt_log(data: bytes) -> None:
    with pytest.raises(CorruptLog):
        codec.decode_event(data)
    with pytest.raises(CorruptLog):
        codec.decode_message(data)


segments = st.from_regex(
    r"[A-Za-z0-9_][A-Za-z0-9_\-]{0,40}(\.[A-Za-z0-9_\-]{1,10}){0,3}", fullmatch=True
)
kinds = st.sampled_from(["result", "collection", "manifest", "input", "log", "workload"])


@given(snowflakes, kinds, segments, segments)
def test_an_address_reads_back_from_its_uri(execution: str, kind: str, step: str, key: str) -> None:
    made = make_address(execution, kind, step, key)
    assert parse_uri(str(made)) == made


nasty = st.sampled_from(
    [
        "..",
        ".",
        "",
        "/",
        "\\",
        "%2e%2e",
        "\x00",
        "a/../b",
        "~",
        "результат",
        "a b",
        "//",
        "?",
        "#",
        "\n",
    ]
)
almost = st.builds(
    "/".join,
    st.lists(
        segments | nasty | snowflakes | kinds | small_text | st.just("execution"),
        min_size=3,
        max_size=7,
    ),
)


@settings(max_examples=count_examples(120))
@given(
    st.sampled_from(["noetl://execution/1/result/", "noetl://", "NOETL://", "file://", ""]), almost
)
def test_no_uri_escapes_its_execution(head: str, tail: str) -> None:
    uri = head + tail
    try:
        found = parse_uri(uri)
    except BadReference:
        return
    assert str(found) == uri
    for part in (found.execution_id, found.kind, found.step, found.key):
        assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.\-]*", part)
        assert ".." not in part


@given(st.text(), st.text(), st.text(), st.text())
def test_an_address_of_anything_is_whole_or_refused(
    execution: str, kind: str, step: str, key: str
) -> None:
    try:
        made = make_address(execution, kind, step, key)
    except BadReference:
        return
    assert parse_uri(str(made)) == made


@given(segments, st.integers(1, 99), st.none() | st.integers(0, 10**9))
def test_a_result_key_can_stand_in_an_address(task: str, attempt: int, index: int | None) -> None:
    key = make_result_key(command_id("a", "run"), attempt, task, index)
    assert make_address("1", "result", "step", key).key == key


@given(
    st.integers(0, 1023), st.lists(st.integers(0, 2_500_000_000_000_000), min_size=1, max_size=60)
)
def test_snowflakes_only_grow_whatever_the_clock_does(node: int, moments: list[int]) -> None:
    source = Snowflakes(node)
    made = [int(source.draw_id(now)) for now in moments]
    assert all(before < after for before, after in itertools.pairwise(made))
    assert all(0 < value < 2**63 for value in made)


@given(
    st.lists(st.integers(0, 1023), min_size=2, max_size=5, unique=True),
    st.integers(0, 2_500_000_000_000_000),
)
def test_nodes_never_make_the_same_snowflake(nodes: list[int], now: int) -> None:
    made = [source.draw_id(now) for source in map(Snowflakes, nodes) for _ in range(50)]
    assert len(set(made)) == len(made)


@given(snowflakes, st.integers(1, 4096))
def test_a_shard_is_in_range_and_stays(execution: str, count: int) -> None:
    shard = shard_of(execution, count)
    assert 0 <= shard < count
    assert shard == shard_of(execution, count)


@given(small_text, small_text, small_text)
def test_ids_derived_from_a_cause_are_its_own(execution: str, step: str, cause: str) -> None:
    assert activation_id(execution, step, cause) == activation_id(execution, step, cause)
    made = {
        activation_id(execution, step, cause),
        command_id(step, cause),
        timer_id(step, cause),
        derive_id(execution),
    }
    assert len(made) == 4
