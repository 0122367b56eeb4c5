"""Bodies of answers: decoded whole when they are right, refused when they are not, never in large pieces."""

import gzip
import zlib
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from noetl.tools.http.bodies import (
    MAX_GZIP_MEMBERS,
    MAX_PIECE_BYTES,
    BodyBroken,
    EncodingRefused,
    choose_decoder,
)


def compress(encoding: str, data: bytes) -> bytes:
    wbits = {"gzip": 31, "x-gzip": 31, "deflate": 15, "raw": -15}[encoding]
    compressor = zlib.compressobj(6, zlib.DEFLATED, wbits)
    return compressor.compress(data) + compressor.flush()


def decode(encoding: str, *parts: bytes) -> bytes:
    _, decoder = choose_decoder("deflate" if encoding == "raw" else encoding)
    assert decoder is not None
    pieces = [piece for part in parts for piece in decoder.decode(part)]
    assert all(0 < len(piece) <= MAX_PIECE_BYTES for piece in pieces)
    decoder.finish()
    return b"".join(pieces)


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[begin:end] for begin, end in pairwise(places)]


@given(
    st.sampled_from(["gzip", "x-gzip", "deflate", "raw"]),
    st.binary(max_size=2_000),
    st.lists(st.integers(min_value=0), max_size=20),
)
def test_any_data_in_any_parts_comes_back(encoding: str, data: bytes, cuts: list[int]) -> None:
    assert decode(encoding, *split(compress(encoding, data), cuts)) == data


@given(
    st.lists(st.binary(max_size=200), min_size=1, max_size=10),
    st.lists(st.integers(min_value=0), max_size=20),
)
def test_all_members_of_gzip_come_back(members: list[bytes], cuts: list[int]) -> None:
    sent = b"".join(map(gzip.compress, members))
    assert decode("gzip", *split(sent, cuts)) == b"".join(members)


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "raw"])
@pytest.mark.parametrize("size", [MAX_PIECE_BYTES - 1, MAX_PIECE_BYTES, 5 * MAX_PIECE_BYTES])
def test_large_data_comes_in_pieces(encoding: str, size: int) -> None:
    assert decode(encoding, compress(encoding, bytes(size))) == bytes(size)


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "raw"])
def test_data_without_its_end_is_broken(encoding: str) -> None:
    sent = compress(encoding, bytes(range(256)) * 10)
    for end in (1, len(sent) // 2, len(sent) - 1):
        with pytest.raises(BodyBroken, match="the end of the"):
            decode(encoding, sent[:end])


def test_data_that_is_not_encoded_as_it_says_is_broken() -> None:
    with pytest.raises(BodyBroken, match="cannot be decoded"):
        decode("gzip", b'{"a": 1}')


def test_what_follows_gzip_and_is_none_is_ignored() -> None:
    assert decode("gzip", gzip.compress(b"data") + bytes(512)) == b"data"


def test_members_are_counted() -> None:
    member = gzip.compress(b"")
    assert decode("gzip", member * MAX_GZIP_MEMBERS) == b""
    with pytest.raises(BodyBroken, match="gzip members"):
        decode("gzip", member * (MAX_GZIP_MEMBERS + 1))


@pytest.mark.parametrize("header", ["", "identity", " Identity , identity", ","])
def test_a_body_may_be_not_encoded(header: str) -> None:
    assert choose_decoder(header) == ("", None)


@pytest.mark.parametrize("header", ["GZip", "identity, gzip", " deflate ,"])
def test_one_encoding_is_accepted(header: str) -> None:
    assert choose_decoder(header)[1] is not None


@pytest.mark.parametrize(
    "header", ["gzip, gzip", "gzip,deflate", "deflate, identity, gzip", "gzip, br", "zstd", "br",
               "compress", "gzip;q=1", "gz\x00ip", "x" * 5_000, "zstd, zstd", "aws-chunked"]
)  # fmt: skip
def test_two_encodings_and_unknown_ones_are_refused(header: str) -> None:
    with pytest.raises(EncodingRefused) as refused:
        choose_decoder(header)
    assert len(str(refused.value)) < 200
