"""The bytes of a payload. They are the same in every tier, so the checksum is too.

JSON is here; lists are encoded and decoded in pieces. Row sets are in `rowsets.py`; their first
four bytes tell them from JSON.
"""

from collections.abc import Iterator
from functools import lru_cache
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import msgspec

from noetl.model.errors import CorruptLog, InvalidInput
from noetl.model.reference import Home, Reference, derive_ref_id
from noetl.results.sources import MemorySource

if TYPE_CHECKING:
    from noetl.results.formats.rowsets import RowSetReader

JSON, ARROW, PARQUET, PARTS = "json", "arrow", "parquet", "parts"
# The first bytes of row sets; no JSON begins with these.
ARROW_MAGIC = b"\xff\xff\xff\xff"
PARQUET_MAGIC = b"PAR1"
# Bytes of a list that are read and checked together; a larger item is a piece of its own.
LIST_PIECE_BYTES = 64 * 1024
_FIRST_PIECE_ITEMS = 16  # items in the first piece

encode = msgspec.json.encode
_items_decoder = msgspec.json.Decoder(list[msgspec.Raw])


def compute_payload_checksum(data: bytes) -> str:
    return sha256(data).hexdigest()


def make_json_reference(
    uri: str,
    home: Home,
    sha: str,
    size: int,
    rows: int | None,
) -> Reference:
    return Reference(
        ref_id=derive_ref_id(uri),
        type=home,
        uri=uri,
        sha256=sha,
        bytes=size,
        rows=rows,
        format=JSON,
    )


def count_rows(value: Any) -> int | None:
    return len(value) if isinstance(value, list) else None


def encode_pieces(items: list[Any], size: int = LIST_PIECE_BYTES) -> Iterator[tuple[int, bytes]]:
    """Split a list into pieces: for each, the number of items and their JSON without brackets.

    The pieces joined with commas, in brackets, are the JSON of the list.
    """
    at, count = 0, _FIRST_PIECE_ITEMS
    while at < len(items):
        data = encode(items[at : at + count])[1:-1]
        if len(data) > 2 * size and count > 1:  # the items are larger than those before
            count = max(1, count * size // len(data))
            continue
        encoded = min(count, len(items) - at)
        yield encoded, data
        at += encoded
        count = max(1, min(encoded * size // len(data), 2 * count))


def encode_within(items: list[Any], limit: int) -> bytes | None:
    """Return the JSON of the list, or None as soon as it is larger than `limit` bytes."""
    parts: list[bytes] = []
    size = 1
    for _, data in encode_pieces(items):
        parts.append(data)
        size += len(data) + 1
        if size > limit:
            return None
    return b"[" + b",".join(parts) + b"]"


def decode_payload(data: bytes, uri: str) -> Any:
    if is_rowset(data):
        return _open_rowset(data, uri).read_value()
    try:
        return msgspec.json.decode(data)
    except msgspec.DecodeError as error:
        raise CorruptLog(f"{uri} is not JSON: {error}") from error


def decode_slice(
    data: bytes,
    uri: str,
    start: int,
    stop: int,
) -> list[Any]:
    """Return the items [start, stop) of a list. The other items are not decoded."""
    if is_rowset(data):
        return _open_rowset(data, uri).read_rows(start, stop)
    if data[:1] != b"[":
        raise not_a_list_error(uri)
    try:
        wanted = _split_items(data)[max(start, 0) : max(stop, 0)]
    except msgspec.DecodeError as error:
        raise CorruptLog(f"{uri} is not JSON: {error}") from error
    return [msgspec.json.decode(part) for part in wanted]


@lru_cache(maxsize=1)
def _split_items(data: bytes) -> list[msgspec.Raw]:
    """Split a JSON list into its encoded items. The last list is cached, because the chunks of a
    loop read neighbouring items of one list.
    """
    return _items_decoder.decode(data)


def is_rowset(beginning: bytes) -> bool:
    return beginning[:4] in (ARROW_MAGIC, PARQUET_MAGIC)


def _open_rowset(data: bytes, uri: str) -> "RowSetReader":
    from noetl.results.formats import rowsets  # Arrow is slow to load, and most payloads are JSON

    return rowsets.open_rowset_reader(MemorySource(data), uri)


def not_a_list_error(uri: str) -> InvalidInput:
    return InvalidInput(f"{uri} is not a list", hint="resolve it whole")


def verify_checksum(reference: Reference, checksum: str) -> None:
    """Compare the checksum with the reference's. A reference made from an address alone has none."""
    if reference.sha256 is not None and checksum != reference.sha256:
        raise CorruptLog(f"{reference.uri} does not match its checksum")
