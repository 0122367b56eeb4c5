"""Stored credentials: sealed before they are stored, listed without their values, opened for whoever uses them."""

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
    """`needs`: what it must have, one group of them whole. `knows`: the only fields it may have; none: any."""

    needs: tuple[tuple[str, ...], ...] = ((),)
    knows: frozenset[str] = frozenset()

    @property
    def wanted(self) -> str:
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
        """In place of the one of this name, if there is one."""
        check(name, kind, data)
        plain = msgspec.json.encode(data)
        if len(plain) > LARGEST:
            raise InvalidInput(
                f"credential {name!r}: {len(plain)} bytes; at most {LARGEST} are stored"
            )
        others = {row.name: row for row in await self._vault.stored(identity.tenant)}
        known = others.pop(name, None)
        self._refuse_foreign(others)
        key = await asyncio.to_thread(self._keys.newest)
        row = await self._vault.put(
            identity.tenant,
            name,
            kind,
            seal(key, CredentialKey(identity.tenant, name, kind), plain),
        )
        return Added(row, known is None)

    async def stored(self, identity: Identity) -> list[Sealed]:
        """By name; their values stay sealed."""
        return await self._vault.stored(identity.tenant)

    async def delete(self, identity: Identity, name: str) -> None:
        if not await self._vault.delete(identity.tenant, name):
            raise missing(name)

    async def reveal(self, identity: Identity, name: str) -> dict[str, Any]:
        """Its fields. For the worker's channel, and to check what a caller of a hook has signed; for nobody else."""
        row = await self._vault.find(identity.tenant, name)
        if row is None:
            raise missing(name)
        keys = self._keys.keys()
        key = keys.get(sealed_by(row.data))
        if key is None:
            raise self._foreign(row, set(keys))
        return _data.decode(
            unseal(key, CredentialKey(identity.tenant, row.name, row.kind), row.data)
        )

    async def foreign(self, identity: Identity) -> list[str]:
        """Names of those that no key of this server opens. KeyUnusable when its file cannot be used."""
        keys = self._keys.keys()
        return [
            row.name
            for row in await self._vault.stored(identity.tenant)
            if sealed_by(row.data) not in keys
        ]

    def _refuse_foreign(self, others: Mapping[str, Sealed]) -> None:
        """A second key beside the one that others were sealed with would leave no server able to open all of them."""
        keys = self._keys.keys()
        for row in others.values():
            if sealed_by(row.data) not in keys:
                raise self._foreign(row, set(keys))

    def _foreign(self, row: Sealed, keys: set[str]) -> CredentialUnreadable:
        here = f"has {', '.join(sorted(keys))}" if keys else "is not there"
        return CredentialUnreadable(
            f"the credential {row.name!r} was sealed with the key {sealed_by(row.data) or '?'}, and {self._keys.path} {here}",
            hint="copy the key file from the NOETL_HOME it was stored with; if it is lost, "
            f"noetl credential delete {row.name}, and add it again",
        )


def missing(name: str) -> NotFound:
    return NotFound(
        f"there is no credential {name!r}",
        hint=f"noetl credential add {name} --kind KIND --file FILE",
    )


def check(name: str, kind: str, data: Mapping[str, Any]) -> None:
    """InvalidInput says what is wrong; values are never repeated."""
    if not _NAME.fullmatch(name):
        raise InvalidInput(
            f"{name[:100]!r} cannot be the name of a credential",
            hint="letters, digits, '_', '-', '.', at most 100; a letter, digit or '_' first",
        )
    known = KINDS.get(kind)
    if known is None:
        raise InvalidInput(
            f"there is no kind {kind[:100]!r} of credentials", hint=_meant(kind, KINDS) or _kinds()
        )
    if not data:
        raise InvalidInput(
            f"credential {name!r} has no fields", hint='a JSON object, for example {"token": "…"}'
        )
    for field in data:
        if known.knows and field not in known.knows:
            hint = (
                _meant(field, known.knows)
                or f"it may have {', '.join(sorted(known.knows))}; kind generic, anything"
            )
            raise InvalidInput(f"a {kind} credential has no field {field[:100]!r}", hint=hint)
    if not any(all(_filled(data.get(field)) for field in group) for group in known.needs):
        raise InvalidInput(
            f"a {kind} credential needs {known.wanted}, as text; this one has {', '.join(sorted(data))}",
            hint=_meant_one(data, known) or "kind generic takes any fields",
        )


def _filled(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _meant(word: str, known: Any) -> str | None:
    close = get_close_matches(word, list(known), 1)
    return f"did you mean {close[0]}?" if close else None


def _meant_one(data: Mapping[str, Any], kind: Kind) -> str | None:
    wanted = [field for group in kind.needs for field in group if field not in data]
    return next((hint for field in data if (hint := _meant(field, wanted))), None)


def _kinds() -> str:
    return f"{', '.join(KINDS)}; generic takes any fields"
