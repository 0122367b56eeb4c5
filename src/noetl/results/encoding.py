"""A payload's bytes: the same in every tier, so that its checksum is too. JSON here, of which lists are made and read in pieces;
row sets, which are told by how they begin, in `rowsets.py`."""

from collections.abc import Iterator
from functools import lru_cache
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import msgspec

from noetl.model.errors import CorruptLog, InvalidInput
from noetl.model.ids import RefId, derive
from noetl.model.reference import Home, Reference
from noetl.results.sources import MemorySource

if TYPE_CHECKING:
    from noetl.results.rowsets import Reader

JSON, ARROW, PARQUET, PARTS = "json", "arrow", "parquet", "parts"
ARROW_BEGINS, PARQUET_BEGINS = b"\xff\xff\xff\xff", b"PAR1"  # no JSON does
PIECE = (
    64 * 1024
)  # bytes of a list that are read and checked together; one larger item is a piece of its own
_FIRST_GUESS = 16  # items in the first piece

encode = msgspec.json.encode
_parts = msgspec.json.Decoder(list[msgspec.Raw])


def ref_id_of(uri: str) -> RefId:
    """63 bits, the same for the same address."""
    return RefId(str(int(derive("ref", uri), 16) >> 65))


def checksum(data: bytes) -> str:
    return sha256(data).hexdigest()


def reference_to(uri: str, home: Home, sha: str, size: int, rows: int | None) -> Reference:
    return Reference(
        ref_id=ref_id_of(uri), type=home, uri=uri, sha256=sha, bytes=size, rows=rows, format=JSON
    )


def rows_in(value: Any) -> int | None:
    return len(value) if isinstance(value, list) else None


def pieces(items: list[Any], size: int = PIECE) -> Iterator[tuple[int, bytes]]:
    """Numbers of items and their JSON: joined with commas, in brackets, they are the JSON of the list."""
    at, count = 0, _FIRST_GUESS
    while at < len(items):
        data = encode(items[at : at + count])[1:-1]
        if len(data) > 2 * size and count > 1:  # these are larger than those before
            count = max(1, count * size // len(data))
            continue
        taken = min(count, len(items) - at)
        yield taken, data
        at += taken
        count = max(1, min(taken * size // len(data), 2 * count))


def encoded_within(items: list[Any], limit: int) -> bytes | None:
    """None, as soon as it is known, when the list takes more than that."""
    found: list[bytes] = []
    size = 1
    for _, data in pieces(items):
        found.append(data)
        size += len(data) + 1
        if size > limit:
            return None
    return b"[" + b",".join(found) + b"]"


def decoded(data: bytes, uri: str) -> Any:
    if is_rowset(data):
        return _rowset(data, uri).value()
    try:
        return msgspec.json.decode(data)
    except msgspec.DecodeError as error:
        raise CorruptLog(f"{uri} is not JSON: {error}") from error


def sliced(data: bytes, uri: str, start: int, stop: int) -> list[Any]:
    """Items [start, stop) of a list; the others are passed over, not made."""
    if is_rowset(data):
        return _rowset(data, uri).rows(start, stop)
    if data[:1] != b"[":
        raise not_a_list(uri)
    try:
        wanted = _split(data)[max(start, 0) : max(stop, 0)]
    except msgspec.DecodeError as error:
        raise CorruptLog(f"{uri} is not JSON: {error}") from error
    return [msgspec.json.decode(part) for part in wanted]


@lru_cache(maxsize=1)
def _split(data: bytes) -> list[msgspec.Raw]:
    """Chunks of a loop read what lies side by side: the same piece again and again."""
    return _parts.decode(data)


def is_rowset(beginning: bytes) -> bool:
    return beginning[:4] in (ARROW_BEGINS, PARQUET_BEGINS)


def _rowset(data: bytes, uri: str) -> "Reader":
    from noetl.results import rowsets  # Arrow: only who meets a row set pays for it

    return rowsets.read(MemorySource(data), uri)


def not_a_list(uri: str) -> InvalidInput:
    return InvalidInput(f"{uri} is not a list", hint="resolve it whole")


def verify(reference: Reference, found: str) -> None:
    """A reference of which only the address is known has no checksum to compare with."""
    if reference.sha256 is not None and found != reference.sha256:
        raise CorruptLog(f"{reference.uri} does not match its checksum")
