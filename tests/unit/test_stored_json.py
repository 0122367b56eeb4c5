"""JSON in columns that only the server reads."""

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from noetl.log.stored_json import DICTIONARY, compress_json, decompress_json

STATE = (
    b'{"execution_id":"7","status":"running","path":"etl/one","version":1,"steps":{"a":{"runs":1}}}'
)


@given(st.binary(max_size=2_000))
def test_what_is_stored_is_read_back(data: bytes) -> None:
    assert decompress_json(compress_json(b"{" + data)) == b"{" + data


def test_json_of_older_versions_is_read_as_it_is() -> None:
    assert decompress_json(STATE) == STATE
    assert decompress_json(b"") == b""


def test_streams_without_the_dictionary_are_read() -> None:
    assert decompress_json(zlib.compress(STATE)) == STATE


@pytest.mark.parametrize("stored", [b"x", b"x\x9cdamaged", compress_json(STATE)[:-1]])
def test_a_damaged_stream_is_told(stored: bytes) -> None:
    with pytest.raises(ValueError, match="damaged"):
        decompress_json(stored)


def test_the_dictionary_is_the_one_that_rows_were_written_with() -> None:
    """A row that was written with another one cannot be read: add a second dictionary instead."""
    assert zlib.adler32(DICTIONARY) == 1_168_030_843
    assert len(compress_json(STATE)) < len(zlib.compress(STATE)) - 30
