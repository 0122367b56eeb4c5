"""Stored credentials: sealed in the store, listed without values, opened only for their use."""

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import msgspec

from noetl.catalog.port import Sealed, Vault
from noetl.model.errors import InvalidInput, NotFound
from noetl.model.identity import Identity
from noetl.server.services.keys import KeyFile
from noetl.server.services.sealing import (
    CredentialKey,
    CredentialUnreadable,
    seal,
    sealed_by,
    unseal,
)

LARGEST = 64 * 1024  # bytes of JSON
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,99}", re.ASCII)
_data = msgspec.json.Decoder(dict[str, Any])


@dataclass(frozen=True, slots=True)
class Kind:
    """The fields that credentials of one kind have."""

    needs: tuple[tuple[str, ...], ...] = ((),)  # all fields of at least one group are required
    knows: frozenset[str] = frozenset()  # fields that are allowed; empty: any

    @property
    def wanted(self) -> str:
        """The needed fields as text, for messages."""
        return ", or ".join(" and ".join(group) for group in self.needs)


_POSTGRES = "dsn host port database dbname user username password sslmode sslrootcert options application_name"
KINDS: Mapping[str, Kind] = {
    "postgres": Kind(needs=(("dsn",), ("host",)), knows=frozenset(_POSTGRES.split())),
    "bearer": Kind(needs=(("token",),)),
    "basic": Kind(needs=(("username", "password"),)),
    "generic": Kind(),
}


@dataclass(frozen=True, slots=True)
class Added:
    row: Sealed
    created: bool  # False: one of this name was replaced


class CredentialService:
    def __init__(self, vault: Vault, keys: KeyFile) -> None:
        self._vault = vault
        self._keys = keys

    async def add(self, identity: Identity, name: str, kind: str, data: dict[str, Any]) -> Added:
        """Store a credential; replaces the one of this name, if there is one."""
        check(name, kind, data)
        plain = msgspec.json.encode(data)
        if len(plain) > LARGEST:
            raise InvalidInput(
                f"credential {name!r}: {len(plain)} bytes; at most {LARGEST} are stored"
            )
        rows = await self._vault.stored(identity.tenant)
        others = {row.name: row for row in rows}
        replaced = others.pop(name, None)
        self._refuse_foreign(others)
        key = await asyncio.to_thread(self._keys.newest)
        sealed = seal(key, CredentialKey(identity.tenant, name, kind), plain)
        row = await self._vault.put(identity.tenant, name, kind, sealed)
        return Added(row, created=replaced is None)

    async def stored(self, identity: Identity) -> list[Sealed]:
        """All credentials, sorted by name. Their values stay sealed."""
        return await self._vault.stored(identity.tenant)

    async def delete(self, identity: Identity, name: str) -> None:
        if not await self._vault.delete(identity.tenant, name):
            raise missing(name)

    async def reveal(self, identity: Identity, name: str) -> dict[str, Any]:
        """The fields of a credential. Only for workers, and to verify signatures of hook calls."""
        row = await self._vault.find(identity.tenant, name)
        if row is None:
            raise missing(name)
        keys = self._keys.keys()
        key = keys.get(sealed_by(row.data))
        if key is None:
            raise self._foreign(row, set(keys))
        credential = CredentialKey(identity.tenant, row.name, row.kind)
        return _data.decode(unseal(key, credential, row.data))

    async def foreign(self, identity: Identity) -> list[str]:
        """The names of credentials that no key of this server opens. Raises `KeyUnusable`."""
        keys = self._keys.keys()
        rows = await self._vault.stored(identity.tenant)
        return [row.name for row in rows if sealed_by(row.data) not in keys]

    def _refuse_foreign(self, others: Mapping[str, Sealed]) -> None:
        """Raise if this server cannot open the other credentials.

        Sealing a new one with another key would leave no server able to open all of them.
        """
        keys = self._keys.keys()
        for row in others.values():
            if sealed_by(row.data) not in keys:
                raise self._foreign(row, set(keys))

    def _foreign(self, row: Sealed, keys: set[str]) -> CredentialUnreadable:
        found = f"has {', '.join(sorted(keys))}" if keys else "is not there"
        return CredentialUnreadable(
            f"the credential {row.name!r} was sealed with the key {sealed_by(row.data) or '?'}, and {self._keys.path} {found}",
            hint="copy the key file from the NOETL_HOME it was stored with; if it is lost, "
            f"noetl credential delete {row.name}, and add it again",
        )


def missing(name: str) -> NotFound:
    return NotFound(
        f"there is no credential {name!r}",
        hint=f"noetl credential add {name} --kind KIND --file FILE",
    )


def check(name: str, kind: str, data: Mapping[str, Any]) -> None:
    """Raise `InvalidInput` if name, kind or fields are not valid. Messages contain no values."""
    if not _NAME.fullmatch(name):
        raise InvalidInput(
            f"{name[:100]!r} cannot be the name of a credential",
            hint="letters, digits, '_', '-', '.', at most 100; a letter, digit or '_' first",
        )
    fields = KINDS.get(kind)
    if fields is None:
        raise InvalidInput(
            f"there is no kind {kind[:100]!r} of credentials", hint=_meant(kind, KINDS) or _kinds()
        )
    if not data:
        raise InvalidInput(
            f"credential {name!r} has no fields", hint='a JSON object, for example {"token": "…"}'
        )
    for field in data:
        if fields.knows and field not in fields.knows:
            hint = (
                _meant(field, fields.knows)
                or f"it may have {', '.join(sorted(fields.knows))}; kind generic, anything"
            )
            raise InvalidInput(f"a {kind} credential has no field {field[:100]!r}", hint=hint)
    if not _has_needed(data, fields):
        raise InvalidInput(
            f"a {kind} credential needs {fields.wanted}, as text; this one has {', '.join(sorted(data))}",
            hint=_meant_one(data, fields) or "kind generic takes any fields",
        )


def _has_needed(data: Mapping[str, Any], kind: Kind) -> bool:
    filled = {field for field in data if _filled(data[field])}
    return any(filled.issuperset(group) for group in kind.needs)


def _filled(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _meant(word: str, known: Any) -> str | None:
    """A hint that names the word most similar to this one, if there is one."""
    matches = get_close_matches(word, list(known), 1)
    if not matches:
        return None
    return f"did you mean {matches[0]}?"


def _meant_one(data: Mapping[str, Any], kind: Kind) -> str | None:
    """A hint that names a needed field for a misspelt one, if there is one."""
    needed = [field for group in kind.needs for field in group]
    missing_fields = [field for field in needed if field not in data]
    for field in data:
        hint = _meant(field, missing_fields)
        if hint is not None:
            return hint
    return None


def _kinds() -> str:
    return f"{', '.join(KINDS)}; generic takes any fields"
