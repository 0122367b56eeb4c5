"""Envelope encryption of credentials (AES-256-GCM).

Each credential has its own random data key, and a key of the key file wraps that data key. Both
encryptions authenticate the tenant, name, kind and version of the credential, so a row that was
changed or moved, or holds an older value, does not open. The id of the wrapping key is stored, so a
new key can take over by wrapping the data keys again.

Credentials of the first format have no version. They open only in a row without one, until `noetl
credential rewrap` has sealed them again.
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
    """The identity of a credential, which its encryption authenticates. Version 0: it has none."""

    tenant: Tenant
    name: str
    kind: str
    version: int = 0


class _OldEnvelope(msgspec.Struct, frozen=True, array_like=True, tag="noetl.credential.1"):
    key: str
    wrapped: bytes
    data: bytes


class _Envelope(msgspec.Struct, frozen=True, array_like=True, tag="noetl.credential.2"):
    key: str
    wrapped: bytes
    data: bytes


_envelopes = msgspec.msgpack.Decoder(_OldEnvelope | _Envelope)


def make_sealing_key() -> SealingKey:
    return SealingKey(os.urandom(KEY_BYTES))


def seal(key: SealingKey, place: CredentialIdentity, plain: bytes) -> bytes:
    """Seal a credential. Version 0 makes the first format, which older servers open."""
    data_key = make_sealing_key()
    wrapped = _encrypt(key, data_key.secret, _encode_identity("key", place))
    data = _encrypt(data_key, plain, _encode_identity("data", place))
    if place.version == 0:
        return msgspec.msgpack.encode(_OldEnvelope(key.id, wrapped, data))
    return msgspec.msgpack.encode(_Envelope(key.id, wrapped, data))


def rewrap(old: SealingKey, new: SealingKey, place: CredentialIdentity, sealed: bytes) -> bytes:
    """The same credential, its data key wrapped by another key. Its value is not opened."""
    try:
        envelope = _envelopes.decode(sealed)
        about = _encode_identity("key", place)
        wrapped = _encrypt(new, _decrypt(old, envelope.wrapped, about), about)
    except (msgspec.DecodeError, ValueError) as error:
        raise _make_unreadable(place) from error
    return msgspec.msgpack.encode(_Envelope(new.id, wrapped, envelope.data))


def has_version(sealed: bytes) -> bool:
    """Whether its encryption authenticates a version."""
    try:
        return isinstance(_envelopes.decode(sealed), _Envelope)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False


def read_key_id(sealed: bytes) -> str:
    """The id of the key that opens it; empty if the bytes are no sealed credential."""
    try:
        envelope: _OldEnvelope | _Envelope = _envelopes.decode(sealed)
        return envelope.key
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""


def unseal(key: SealingKey, place: CredentialIdentity, sealed: bytes) -> bytes:
    try:
        envelope = _envelopes.decode(sealed)
        if isinstance(envelope, _Envelope) != (place.version > 0):
            raise ValueError("the format of another version")
        data_key = SealingKey(_decrypt(key, envelope.wrapped, _encode_identity("key", place)))
        return _decrypt(data_key, envelope.data, _encode_identity("data", place))
    except (msgspec.DecodeError, ValueError) as error:
        raise _make_unreadable(place) from error


def _make_unreadable(place: CredentialIdentity) -> CredentialUnreadable:
    return CredentialUnreadable(
        f"the credential {place.name!r} does not open: its row was changed, is an older one, or belongs to another credential",
        hint=f"store it again: noetl credential add {place.name} --kind {place.kind} --file FILE",
    )


def _encode_identity(part: str, place: CredentialIdentity) -> bytes:
    *described, version = place
    if version == 0:
        return msgspec.json.encode([part, *described])
    return msgspec.json.encode([part, *described, version])


def _encrypt(key: SealingKey, plain: bytes, about: bytes) -> bytes:
    sealed: bytes = _load_ciphers().encrypt(key.secret, plain, about)
    return sealed


def _decrypt(key: SealingKey, data: bytes, about: bytes) -> bytes:
    plain: bytes = _load_ciphers().decrypt(key.secret, data, about)
    return plain


def _load_ciphers() -> Any:
    """The module of the ciphers. It is loaded when it is used: many servers never seal anything."""
    return import_module("noetl.server.credentials.ciphers")
