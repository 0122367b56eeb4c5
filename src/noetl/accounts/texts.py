"""The text of a token: `noetl_`, its id, and 256 random bits. Random bits come from the caller."""

import re
from base64 import urlsafe_b64encode
from hashlib import sha256

ID_BYTES = 9
SECRET_BYTES = 32
RANDOM_BYTES = ID_BYTES + SECRET_BYTES
_TOKEN_TEXT = re.compile(r"noetl_([A-Za-z0-9]{12})_([A-Za-z0-9_\-]{43})", re.ASCII)
# An id is an argument of commands, which read `-` at its beginning as an option; `_` ends the id.
_LETTERS_OF_IDS = str.maketrans("-_", "xy")


def make_token_text(random_bytes: bytes) -> str:
    """A token of `RANDOM_BYTES` random bytes."""
    assert len(random_bytes) == RANDOM_BYTES
    token_id = make_public_id(random_bytes[:ID_BYTES])
    return f"noetl_{token_id}_{_encode(random_bytes[ID_BYTES:])}"


def make_public_id(random_bytes: bytes) -> str:
    """An id of a token or of a user, which is no secret."""
    return _encode(random_bytes).translate(_LETTERS_OF_IDS)


def read_token_id(text: str) -> str | None:
    """The id in the text of a token, which is no secret. None if the text is no token."""
    match = _TOKEN_TEXT.fullmatch(text)
    return None if match is None else match[1]


def sum_token(text: str) -> bytes:
    return sha256(text.encode("utf-8", "surrogateescape")).digest()


def _encode(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode("ascii")
