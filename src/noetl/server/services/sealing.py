"""Envelope encryption of credentials (AES-256-GCM).

Each credential has its own random data key, and a key of the key file wraps that data key. Both
encryptions authenticate the tenant, name and kind of the credential, so a row that was changed or
moved does not open. The id of the wrapping key is stored, so a new key can take over by wrapping
the data keys again.
"""

import os
from dataclasses import dataclass, field
from hashlib import sha256
from typing import NamedTuple

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from noetl.model.errors import Conflict
from noetl.model.ids import Tenant

KEY = 32  # bytes
NONCE = 12  # bytes


class CredentialUnreadable(Conflict):
    """A stored credential cannot be opened: it was changed or moved, or its key is not here."""

    code = "CREDENTIAL_UNREADABLE"


@dataclass(frozen=True, slots=True)
class Key:
    """An encryption key. Its id identifies it without revealing anything of it."""

    secret: bytes = field(repr=False)

    @property
    def id(self) -> str:
        return sha256(b"noetl key\0" + self.secret).hexdigest()[:16]


class CredentialKey(NamedTuple):
    """The identity of a credential, which its encryption authenticates."""

    tenant: Tenant
    name: str
    kind: str


class _Envelope(msgspec.Struct, frozen=True, array_like=True, tag="noetl.credential.1"):
    key: str
    wrapped: bytes
    data: bytes


_envelopes = msgspec.msgpack.Decoder(_Envelope)


def new_key() -> Key:
    return Key(os.urandom(KEY))


def seal(key: Key, place: CredentialKey, plain: bytes) -> bytes:
    data_key = new_key()
    wrapped = _encrypt(key, data_key.secret, _about("key", place))
    return msgspec.msgpack.encode(
        _Envelope(key.id, wrapped, _encrypt(data_key, plain, _about("data", place)))
    )


def sealed_by(sealed: bytes) -> str:
    """The id of the key that opens it; empty if the bytes are no sealed credential."""
    try:
        return _envelopes.decode(sealed).key
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""


def unseal(key: Key, place: CredentialKey, sealed: bytes) -> bytes:
    try:
        envelope = _envelopes.decode(sealed)
        data_key = Key(_decrypt(key, envelope.wrapped, _about("key", place)))
        return _decrypt(data_key, envelope.data, _about("data", place))
    except (msgspec.DecodeError, InvalidTag, ValueError) as error:
        raise CredentialUnreadable(
            f"the credential {place.name!r} does not open: its row was changed, or belongs to another credential",
            hint=f"store it again: noetl credential add {place.name} --kind {place.kind} --file FILE",
        ) from error


def _about(part: str, place: CredentialKey) -> bytes:
    return msgspec.json.encode([part, *place])


def _encrypt(key: Key, plain: bytes, about: bytes) -> bytes:
    nonce = os.urandom(NONCE)
    return nonce + AESGCM(key.secret).encrypt(nonce, plain, about)


def _decrypt(key: Key, data: bytes, about: bytes) -> bytes:
    return AESGCM(key.secret).decrypt(data[:NONCE], data[NONCE:], about)
