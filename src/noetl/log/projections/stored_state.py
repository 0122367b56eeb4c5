"""The state of an execution as its row stores it: compressed JSON.

Rows of older versions hold the JSON itself. The first byte tells the two apart: a zlib stream
begins with `x`, a JSON object with `{`.
"""

import zlib

_LEVEL = 1  # higher levels take three times as long for a tenth less
_ZLIB_FIRST_BYTE = 0x78


def compress_state(state: bytes) -> bytes:
    return zlib.compress(state, _LEVEL)


def decompress_state(stored: bytes) -> bytes | None:
    """The JSON of a stored state; None if it is damaged. Readers fold the log then."""
    if stored[:1] != bytes((_ZLIB_FIRST_BYTE,)):
        return stored
    try:
        return zlib.decompress(stored)
    except zlib.error:
        return None
