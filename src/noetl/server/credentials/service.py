"""Stored credentials: sealed in the store, listed without values, opened only for their use."""

import asyncio
import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

import msgspec
from msgspec import Struct

from noetl.catalog.port import SealedCredential, Vault
from noetl.model.errors import InvalidInput, NotFound
from noetl.model.identity import Identity, Permission, needs
from noetl.model.secret_reference import (
    REFERENCE_FIELD,
    REFERENCE_KINDS,
    SecretReference,
    wrap_reference,
)
from noetl.server.audit.recorder import AuditRecorder
from noetl.server.credentials.keys import KeyFile
from noetl.server.credentials.sealing import (
    CredentialIdentity,
    CredentialUnreadable,
    SealingKey,
    has_version,
    read_key_id,
    rewrap,
    seal,
    unseal,
)
from noetl.server.credentials.views import (
    AddedView,
    CredentialsView,
    RewrappedView,
    make_credential_view,
)
from noetl.server.http.structs import DeletedView, extend_view

MAX_REWRAPPED = 100  # credentials in one call
MAX_CREDENTIAL_BYTES = 64 * 1024  # bytes of JSON
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,99}", re.ASCII)
_data = msgspec.json.Decoder(dict[str, Any])


class CredentialKind(Struct, frozen=True):
    """The fields that credentials of one kind have."""

    needed_groups: tuple[tuple[str, ...], ...] = (
        (),
    )  # all fields of at least one group are required
    allowed_fields: frozenset[str] = frozenset()  # fields that are allowed; empty: any

    @property
    def needed_fields(self) -> str:
        """The needed fields as text, for messages."""
        return ", or ".join(" and ".join(group) for group in self.needed_groups)


_POSTGRES = "dsn host port database dbname user username password sslmode sslrootcert options application_name"
KINDS: Mapping[str, CredentialKind] = {
    "postgres": CredentialKind(
        needed_groups=(("dsn",), ("host",)), allowed_fields=frozenset(_POSTGRES.split())
    ),
    "bearer": CredentialKind(needed_groups=(("token",),)),
    "basic": CredentialKind(needed_groups=(("username", "password"),)),
    "generic": CredentialKind(),
    # Declared by reference: the value is in another place, and only workers read it there.
    "vault": CredentialKind(
        needed_groups=(("path",),), allowed_fields=frozenset(("path", "fields"))
    ),
    "file": CredentialKind(
        needed_groups=(("path",),), allowed_fields=frozenset(("path", "fields"))
    ),
}


class CredentialService:
    def __init__(self, vault: Vault, keys: KeyFile, *, audit: AuditRecorder) -> None:
        self._vault = vault
        self._keys = keys
        self._audit = audit

    @needs(Permission.ADMINISTER)
    async def add(
        self, identity: Identity, name: str, kind: str, data: dict[str, Any]
    ) -> AddedView:
        """Store a credential; replaces the one of this name, if there is one."""
        check_credential(name, kind, data)
        plain = msgspec.json.encode(data)
        if len(plain) > MAX_CREDENTIAL_BYTES:
            raise InvalidInput(
                f"credential {name!r}: {len(plain)} bytes; at most {MAX_CREDENTIAL_BYTES} are stored"
            )
        rows = await self._vault.list_sealed_credentials(identity.tenant)
        others = {row.name: row for row in rows}
        replaced = others.pop(name, None)
        self._refuse_unreadable_others(others)
        key = await asyncio.to_thread(self._keys.get_sealing_key)
        version = await self._vault.reserve_version()
        sealed = seal(key, CredentialIdentity(identity.tenant, name, kind, version), plain)
        old_version = None if replaced is None else replaced.version
        async with self._audit.record(
            identity, "credential.add", name, kind=kind, version=version, replaced=old_version
        ):
            row = await self._vault.put(identity.tenant, name, kind, sealed, version)
        return extend_view(AddedView, make_credential_view(row), created=replaced is None)

    @needs(Permission.WRITE)
    async def list_all(self, identity: Identity) -> CredentialsView:
        """All credentials, sorted by name, without their values."""
        rows = await self._vault.list_sealed_credentials(identity.tenant)
        return CredentialsView([make_credential_view(row) for row in rows])

    @needs(Permission.ADMINISTER)
    async def delete(self, identity: Identity, name: str) -> DeletedView:
        async with self._audit.record(identity, "credential.delete", name):
            if not await self._vault.delete(identity.tenant, name):
                raise make_missing_credential(name)
        return DeletedView(name)

    @needs(Permission.WORK)
    async def reveal(self, identity: Identity, name: str) -> dict[str, Any]:
        """The fields of a credential. Only for workers, and to verify signatures of hook calls."""
        row, keys = await self._find_row(identity, name), self._keys.read_keys()
        if read_key_id(row.data) not in keys:
            # It may have been rewrapped since it was read, and its old key removed.
            row = await self._find_row(identity, name)
        key = keys.get(read_key_id(row.data))
        if key is None:
            raise self._make_unreadable_error(row, set(keys))
        if not has_version(row.data) and self._keys.requires_versions():
            raise self._make_old_format_error(row)
        fields = _data.decode(unseal(key, _identify(identity, row), row.data))
        if row.kind in REFERENCE_KINDS:
            return wrap_reference(SecretReference(row.kind, **fields))
        return fields

    async def _find_row(self, identity: Identity, name: str) -> SealedCredential:
        row = await self._vault.find(identity.tenant, name)
        if row is None:
            raise make_missing_credential(name)
        return row

    @needs(Permission.ADMINISTER)
    async def rewrap(self, identity: Identity, limit: int = MAX_REWRAPPED) -> RewrappedView:
        """Wrap up to `limit` credentials with the newest key. Those that have it are skipped, so this
        can be repeated until none is left."""
        keys = await asyncio.to_thread(self._keys.read_keys)
        newest = next(iter(keys.values()), None)
        rows = await self._vault.list_sealed_credentials(identity.tenant)
        old = [row for row in rows if newest is None or not _is_sealed_by(newest, row)]
        unreadable = [row.name for row in old if read_key_id(row.data) not in keys]
        waiting = [row for row in old if read_key_id(row.data) in keys]
        done = 0
        if waiting:
            assert newest is not None, "a key opens these rows"
            due = waiting[:limit]
            async with self._audit.record(
                identity, "credential.rewrap", key=newest.id, credentials=len(due)
            ):
                for row in due:
                    old_key = keys[read_key_id(row.data)]
                    done += await self._rewrap_row(identity, row, old_key, newest)
        left = len(waiting) - done
        if newest is not None and not left and not unreadable:
            await asyncio.to_thread(self._keys.require_versions)
        return RewrappedView(
            rewrapped=done,
            left=left,
            total=len(rows),
            unreadable=unreadable,
            key=newest.id if newest is not None else None,
        )

    async def _rewrap_row(
        self, identity: Identity, row: SealedCredential, old: SealingKey, newest: SealingKey
    ) -> bool:
        """Returns False if the credential was replaced meanwhile."""
        place, version = _identify(identity, row), row.version
        if has_version(row.data):
            data = rewrap(old, newest, place, row.data)
        else:
            plain = unseal(old, place, row.data)
            version = await self._vault.reserve_version()
            data = seal(newest, place._replace(version=version), plain)
        return await self._vault.reseal(identity.tenant, row, data, version)

    @needs(Permission.ADMINISTER)
    async def list_unreadable(self, identity: Identity) -> list[str]:
        """The names of credentials that no key of this server opens. Raises `KeyUnusable`."""
        keys = self._keys.read_keys()
        rows = await self._vault.list_sealed_credentials(identity.tenant)
        return [row.name for row in rows if read_key_id(row.data) not in keys]

    def _refuse_unreadable_others(self, others: Mapping[str, SealedCredential]) -> None:
        """Raise if this server cannot open the other credentials.

        Sealing a new one with another key would leave no server able to open all of them.
        """
        keys = self._keys.read_keys()
        for row in others.values():
            if read_key_id(row.data) not in keys:
                raise self._make_unreadable_error(row, set(keys))

    def _make_old_format_error(self, row: SealedCredential) -> CredentialUnreadable:
        return CredentialUnreadable(
            f"the credential {row.name!r} is sealed without a version, and all of this server's were sealed with one",
            hint=f"somebody has put an old row back; if you restored an older backup yourself, delete {self._keys.format_path}, "
            "then noetl credential rewrap",
        )

    def _make_unreadable_error(self, row: SealedCredential, keys: set[str]) -> CredentialUnreadable:
        found = f"has {', '.join(sorted(keys))}" if keys else "is not there"
        return CredentialUnreadable(
            f"the credential {row.name!r} was sealed with the key {read_key_id(row.data) or '?'}, and {self._keys.path} {found}",
            hint="copy the key file from the NOETL_HOME it was stored with; if it is lost, "
            f"noetl credential delete {row.name}, and add it again",
        )


def _identify(identity: Identity, row: SealedCredential) -> CredentialIdentity:
    return CredentialIdentity(identity.tenant, row.name, row.kind, row.version)


def _is_sealed_by(key: SealingKey, row: SealedCredential) -> bool:
    return has_version(row.data) and read_key_id(row.data) == key.id


def make_missing_credential(name: str) -> NotFound:
    return NotFound(
        f"there is no credential {name!r}",
        hint=f"noetl credential add {name} --kind KIND --file FILE",
    )


def check_credential(name: str, kind: str, data: Mapping[str, Any]) -> None:
    """Raise `InvalidInput` if name, kind or fields are not valid. Messages contain no values."""
    if not _NAME.fullmatch(name):
        raise InvalidInput(
            f"{name[:100]!r} cannot be the name of a credential",
            hint="letters, digits, '_', '-', '.', at most 100; a letter, digit or '_' first",
        )
    fields = KINDS.get(kind)
    if fields is None:
        raise InvalidInput(
            f"there is no kind {kind[:100]!r} of credentials",
            hint=_suggest_word(kind, KINDS) or _list_credential_kinds(),
        )
    if not data:
        raise InvalidInput(
            f"credential {name!r} has no fields", hint='a JSON object, for example {"token": "…"}'
        )
    if kind in REFERENCE_KINDS:
        _check_reference(name, data)
    if REFERENCE_FIELD in data:
        raise InvalidInput(
            f"credential {name!r} has the field {REFERENCE_FIELD!r}, which is reserved",
            hint=f"noetl credential add {name} --vault PATH, or --mounted PATH",
        )
    for field in data:
        if fields.allowed_fields and field not in fields.allowed_fields:
            hint = (
                _suggest_word(field, fields.allowed_fields)
                or f"it may have {', '.join(sorted(fields.allowed_fields))}; kind generic, anything"
            )
            raise InvalidInput(f"a {kind} credential has no field {field[:100]!r}", hint=hint)
    if not _has_needed(data, fields):
        raise InvalidInput(
            f"a {kind} credential needs {fields.needed_fields}, as text; this one has {', '.join(sorted(data))}",
            hint=_suggest_field(data, fields) or "kind generic takes any fields",
        )


def _check_reference(name: str, data: Mapping[str, Any]) -> None:
    chosen = data.get("fields", {})
    is_map = isinstance(chosen, dict) and all(_is_filled(value) for value in chosen.values())
    if not is_map:
        raise InvalidInput(
            f"`fields` of credential {name!r} is not a map of names",
            hint='the fields of the credential, each with its name in the secret: {"user": "username"}',
        )


def _has_needed(data: Mapping[str, Any], kind: CredentialKind) -> bool:
    filled = {field for field in data if _is_filled(data[field])}
    return any(filled.issuperset(group) for group in kind.needed_groups)


def _is_filled(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _suggest_word(word: str, known: Any) -> str | None:
    """A hint that names the word most similar to this one, if there is one."""
    matches = get_close_matches(word, list(known), 1)
    if not matches:
        return None
    return f"did you mean {matches[0]}?"


def _suggest_field(data: Mapping[str, Any], kind: CredentialKind) -> str | None:
    """A hint that names a needed field for a misspelt one, if there is one."""
    needed = [field for group in kind.needed_groups for field in group]
    missing_fields = [field for field in needed if field not in data]
    for field in data:
        hint = _suggest_word(field, missing_fields)
        if hint is not None:
            return hint
    return None


def _list_credential_kinds() -> str:
    return f"{', '.join(KINDS)}; generic takes any fields"
