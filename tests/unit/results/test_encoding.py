"""Lists in pieces are the same lists."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from noetl.results.formats.encoding import (
    LIST_PIECE_BYTES,
    decode_slice,
    encode_pieces,
    encode_within,
)
from tests.property.structs import json_values


@given(st.lists(json_values, max_size=60), st.integers(1, 200))
def test_pieces_joined_are_the_json_of_the_list(items: list[object], size: int) -> None:
    found = list(encode_pieces(items, size))
    assert sum(count for count, _ in found) == len(items)
    assert b"[" + b",".join(data for _, data in found) + b"]" == msgspec.json.encode(items)
    assert all(count == 1 or len(data) <= 2 * size for count, data in found)


@given(st.lists(json_values, max_size=40), st.integers(0, 400))
def test_a_list_is_encoded_when_it_fits_and_only_then(items: list[object], limit: int) -> None:
    whole = msgspec.json.encode(items)
    assert encode_within(items, limit) == (whole if len(whole) <= max(limit, 2) else None)


@given(st.lists(json_values, max_size=20), st.integers(-3, 25), st.integers(-3, 25))
def test_a_slice_of_the_bytes_is_a_slice_of_the_list(
    items: list[object], start: int, stop: int
) -> None:
    data = msgspec.json.encode(items)
    wanted = msgspec.json.decode(data)[max(start, 0) : max(stop, 0)]
    assert decode_slice(data, "uri", start, stop) == wanted


def test_pieces_of_small_items_grow_to_their_size() -> None:
    sizes = [len(data) for _, data in encode_pieces([{"n": n} for n in range(200_000)])]
    assert max(sizes) <= 2 * LIST_PIECE_BYTES
    assert len(sizes) < 60
