"""Envelope encryption of credentials (AES-256-GCM).

Each credential has its own random data key, and a key of the key file wraps that data key. Both
encryptions authenticate the tenant, name and kind of the credential, so a row that was changed or
moved does not open. The id of the wrapping key is stored, so a new key can take over by wrapping
the data keys again.
"""

import os
from dataclasses import dataclass, field
from hashlib import sha256
from importlib import import_module
from typing import Any, NamedTuple

import msgspec

from noetl.model.errors import Conflict
from noetl.model.ids import Tenant

KEY_BYTES = 32  # bytes


class CredentialUnreadable(Conflict):
    """A stored credential cannot be opened: it was changed or moved, or its key is not here."""

    code = "CREDENTIAL_UNREADABLE"


@dataclass(frozen=True, slots=True)
class SealingKey:
    """An encryption key. Its id identifies it without revealing anything of it."""

    secret: bytes = field(repr=False)

    @property
    def id(self) -> str:
        return sha256(b"noetl key\0" + self.secret).hexdigest()[:16]


class CredentialIdentity(NamedTuple):
    """The identity of a credential, which its encryption authenticates."""

    tenant: Tenant
    name: str
    kind: str


class _Envelope(msgspec.Struct, frozen=True, array_like=True, tag="noetl.credential.1"):
    key: str
    wrapped: bytes
    data: bytes


_envelopes = msgspec.msgpack.Decoder(_Envelope)


def make_sealing_key() -> SealingKey:
    return SealingKey(os.urandom(KEY_BYTES))


def seal(key: SealingKey, place: CredentialIdentity, plain: bytes) -> bytes:
    data_key = make_sealing_key()
    wrapped = _encrypt(key, data_key.secret, _encode_identity("key", place))
    return msgspec.msgpack.encode(
        _Envelope(key.id, wrapped, _encrypt(data_key, plain, _encode_identity("data", place)))
    )


def read_key_id(sealed: bytes) -> str:
    """The id of the key that opens it; empty if the bytes are no sealed credential."""
    try:
        return _envelopes.decode(sealed).key
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""


def unseal(key: SealingKey, place: CredentialIdentity, sealed: bytes) -> bytes:
    try:
        envelope = _envelopes.decode(sealed)
        data_key = SealingKey(_decrypt(key, envelope.wrapped, _encode_identity("key", place)))
        return _decrypt(data_key, envelope.data, _encode_identity("data", place))
    except (msgspec.DecodeError, ValueError) as error:
        raise CredentialUnreadable(
            f"the credential {place.name!r} does not open: its row was changed, or belongs to another credential",
            hint=f"store it again: noetl credential add {place.name} --kind {place.kind} --file FILE",
        ) from error


def _encode_identity(part: str, place: CredentialIdentity) -> bytes:
    return msgspec.json.encode([part, *place])


def _encrypt(key: SealingKey, plain: bytes, about: bytes) -> bytes:
    sealed: bytes = _load_ciphers().encrypt(key.secret, plain, about)
    return sealed


def _decrypt(key: SealingKey, data: bytes, about: bytes) -> bytes:
    plain: bytes = _load_ciphers().decrypt(key.secret, data, about)
    return plain


def _load_ciphers() -> Any:
    """The module of the ciphers. It is loaded when it is used: many servers never seal anything."""
    return import_module("noetl.server.credentials.ciphers")
