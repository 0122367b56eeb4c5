"""Reads the body of an answer piece by piece, and never more of it than the caller allows.

A few bytes can decode to gigabytes, so a piece of the network is decoded in pieces of at most
`MAX_PIECE_BYTES`, and the limit is checked after each. Answers have at most one encoding: `gzip` or
`deflate`. Others are neither asked for nor accepted.
"""

import asyncio
import zlib
from collections.abc import Iterator
from typing import Protocol

import httpx

ACCEPTED_ENCODINGS = "gzip, deflate"
MAX_PIECE_BYTES = 256 << 10
MAX_GZIP_MEMBERS = 100  # each costs a copy of the rest
GZIP_START = b"\x1f\x8b"


class BodyProblem(Exception):
    """A body that is not accepted."""


class BodyTooLarge(BodyProblem):
    pass


class EncodingRefused(BodyProblem):
    pass


class BodyBroken(BodyProblem):
    pass


class Decoder(Protocol):
    def decode(self, data: bytes) -> Iterator[bytes]:
        """The decoded data in pieces of a bounded size. Raises BodyBroken."""
        ...

    def finish(self) -> None:
        """Raises BodyBroken if the end of the data is missing."""
        ...


async def read_limited_body(response: httpx.Response, limit: int) -> bytearray:
    """Read the decoded body. Raises BodyProblem, with a message that says what is wrong."""
    encoding, decoder = choose_decoder(response.headers.get("content-encoding", ""))
    body = bytearray()
    received = 0
    async for data in response.aiter_raw():
        received += len(data)
        if received > limit:
            raise BodyTooLarge(f"the answer is larger than {limit} bytes")
        if decoder is None:
            body += data
            continue
        for piece in decoder.decode(data):
            if len(body) + len(piece) > limit:
                raise BodyTooLarge(
                    f"the answer is larger than {limit} bytes when it is decoded from {encoding}"
                )
            body += piece
            if len(piece) == MAX_PIECE_BYTES:
                await asyncio.sleep(0)  # others may run between large pieces
    if decoder is not None and received > 0:
        decoder.finish()
    return body


def choose_decoder(header: str) -> tuple[str, Decoder | None]:
    """The encoding of an answer, and its decoder. Raises EncodingRefused."""
    names = [name.strip().lower() for name in header.split(",")]
    encodings = [name for name in names if name not in ("", "identity")]
    if not encodings:
        return "", None
    if len(encodings) > 1:
        raise EncodingRefused(
            f"the answer is encoded {len(encodings)} times ({_shorten(header)}); one encoding is accepted"
        )
    encoding = encodings[0]
    if encoding in ("gzip", "x-gzip"):
        return encoding, GzipDecoder()
    if encoding == "deflate":
        return encoding, DeflateDecoder()
    raise EncodingRefused(
        f"the answer is encoded as {_shorten(encoding)!r}; {ACCEPTED_ENCODINGS} are accepted"
    )


def _shorten(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:60]}…"


class GzipDecoder:
    """Decodes one or more members. What follows the last one and is no member is ignored."""

    def __init__(self) -> None:
        self._decompressor = _make_gzip_decompressor()
        self._members = 1
        self._start = b""  # of what may be the next member

    def decode(self, data: bytes) -> Iterator[bytes]:
        while True:
            if self._decompressor.eof:
                data = self._start + data
                if len(data) < len(GZIP_START):
                    self._start = data
                    return
                if not data.startswith(GZIP_START):
                    return
                self._start = b""
                self._open_next_member()
            yield from _decompress(self._decompressor, data)
            if not self._decompressor.eof:
                return
            data = self._decompressor.unused_data

    def _open_next_member(self) -> None:
        self._members += 1
        if self._members > MAX_GZIP_MEMBERS:
            raise BodyBroken(f"the answer has more than {MAX_GZIP_MEMBERS} gzip members")
        self._decompressor = _make_gzip_decompressor()

    def finish(self) -> None:
        if not self._decompressor.eof:
            raise BodyBroken("the end of the gzip data is missing")


def _make_gzip_decompressor() -> "zlib._Decompress":
    return zlib.decompressobj(zlib.MAX_WBITS | 16)


class DeflateDecoder:
    """Decodes data with the header of zlib, as the standard says, or without, as some send it."""

    def __init__(self) -> None:
        self._decompressor: zlib._Decompress | None = None
        self._start = b""

    def decode(self, data: bytes) -> Iterator[bytes]:
        if self._decompressor is None:
            data = self._start + data
            if len(data) < 2:
                self._start = data
                return
            has_header = data[0] & 0x0F == 8 and int.from_bytes(data[:2]) % 31 == 0
            self._decompressor = zlib.decompressobj(
                zlib.MAX_WBITS if has_header else -zlib.MAX_WBITS
            )
        if not self._decompressor.eof:
            yield from _decompress(self._decompressor, data)

    def finish(self) -> None:
        if self._decompressor is None or not self._decompressor.eof:
            raise BodyBroken("the end of the deflate data is missing")


def _decompress(decompressor: "zlib._Decompress", data: bytes) -> Iterator[bytes]:
    while True:
        try:
            piece = decompressor.decompress(data, MAX_PIECE_BYTES)
        except zlib.error as error:
            raise BodyBroken(f"the answer cannot be decoded: {error}") from None
        if piece:
            yield piece
        data = decompressor.unconsumed_tail
        # After a full piece there may be more to come, though all input is read.
        has_more = bool(data) or len(piece) == MAX_PIECE_BYTES
        if decompressor.eof or not has_more:
            return
