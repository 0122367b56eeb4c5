"""The state of an execution as its row stores it."""

from noetl.log.stored_json import compress_json, decompress_json


def compress_state(state: bytes) -> bytes:
    return compress_json(state)


def decompress_state(stored: bytes) -> bytes | None:
    """The JSON of a stored state; None if it is damaged. Readers fold the log then."""
    try:
        return decompress_json(stored)
    except ValueError:
        return None
