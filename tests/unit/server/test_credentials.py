"""What may be stored, who gets it back, and what happens when the key is not the one."""

import asyncio
import base64
import re
from pathlib import Path
from typing import Any

import pytest

from noetl.audit.memory import AuditMemory
from noetl.catalog.memory import VaultMemory
from noetl.catalog.port import SealedCredential
from noetl.model.errors import InvalidInput, NotFound
from noetl.model.identity import LOCAL_IDENTITY, WORKER_IDENTITY, Identity
from noetl.model.ids import Tenant
from noetl.model.secret_reference import SecretReference, find_reference
from noetl.server.audit.recorder import AuditRecorder
from noetl.server.credentials.keys import KEY_FILE_NAME, KeyFile
from noetl.server.credentials.sealing import (
    CredentialIdentity,
    CredentialUnreadable,
    make_sealing_key,
    seal,
)
from noetl.server.credentials.service import MAX_CREDENTIAL_BYTES, CredentialService

SECRET = {"host": "db.example", "user": "etl", "password": "canary-4711"}
STRANGER = Identity(Tenant(2), frozenset({"admin", "worker"}), "stranger")


class FixedClock:
    def now(self) -> int:
        return 1


def service(home: Path, vault: VaultMemory | None = None) -> CredentialService:
    audit = AuditRecorder(AuditMemory(FixedClock()))
    return CredentialService(vault or VaultMemory(FixedClock()), KeyFile(home), audit=audit)


def test_a_credential_is_stored_listed_replaced_and_deleted(tmp_path: Path) -> None:
    async def live() -> None:
        vault = VaultMemory(FixedClock())
        here = service(tmp_path, vault)
        assert (await here.add(LOCAL_IDENTITY, "db", "postgres", SECRET)).created
        assert await here.reveal(WORKER_IDENTITY, "db") == SECRET
        (row,) = await vault.list_sealed_credentials(LOCAL_IDENTITY.tenant)
        assert b"canary" not in row.data
        (listed,) = (await here.list_all(LOCAL_IDENTITY)).credentials
        assert (listed.name, listed.kind) == ("db", "postgres")
        assert not (await here.add(LOCAL_IDENTITY, "db", "bearer", {"token": "t"})).created
        assert await here.reveal(WORKER_IDENTITY, "db") == {"token": "t"}
        assert await service(tmp_path, vault).reveal(WORKER_IDENTITY, "db") == {"token": "t"}
        await here.delete(LOCAL_IDENTITY, "db")
        for gone in (here.reveal(WORKER_IDENTITY, "db"), here.delete(LOCAL_IDENTITY, "db")):
            with pytest.raises(NotFound) as refused:
                await gone
            assert "noetl credential add db" in (refused.value.hint or "")

    asyncio.run(live())


def test_a_credential_by_reference_has_a_place_and_no_value(tmp_path: Path) -> None:
    async def live() -> None:
        here = service(tmp_path)
        await here.add(
            LOCAL_IDENTITY, "db", "vault", {"path": "secret/data/db", "fields": {"user": "u"}}
        )
        reference = find_reference(await here.reveal(WORKER_IDENTITY, "db"))
        assert reference == SecretReference("vault", "secret/data/db", {"user": "u"})
        refused: list[tuple[str, dict[str, Any]]] = [
            ("vault", {}),
            ("vault", {"path": ""}),
            ("file", {"path": 7}),
            ("file", {"path": "db", "fields": ["user"]}),
            ("file", {"path": "db", "fields": {"user": 7}}),
            ("vault", {"path": "secret/data/db", "password": "canary"}),
            ("generic", {"$secret_reference": {"provider": "file", "path": "x"}}),
        ]
        for kind, data in refused:
            with pytest.raises(InvalidInput) as refusal:
                await here.add(LOCAL_IDENTITY, "db", kind, data)
            assert "canary" not in str(refusal.value)

    asyncio.run(live())


def test_a_credential_belongs_to_a_tenant(tmp_path: Path) -> None:
    async def live() -> None:
        here = service(tmp_path)
        await here.add(LOCAL_IDENTITY, "db", "postgres", SECRET)
        with pytest.raises(NotFound):
            await here.reveal(STRANGER, "db")
        with pytest.raises(NotFound):
            await here.delete(STRANGER, "db")
        assert (await here.list_all(STRANGER)).credentials == []
        assert await here.reveal(WORKER_IDENTITY, "db") == SECRET

    asyncio.run(live())


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("postgres", {"dsn": "postgresql://u:p@h/d"}),
        (
            "postgres",
            {
                "host": "h",
                "port": 5432,
                "database": "d",
                "user": "u",
                "password": "p",
                "sslmode": "require",
            },
        ),
        ("bearer", {"token": "t"}),
        ("bearer", {"token": "t", "base_url": "https://api.example"}),
        ("basic", {"username": "u", "password": "p"}),
        ("generic", {"anything": {"at": ["all", None, 1.5]}}),
    ],
)
def test_a_kind_takes_its_fields(tmp_path: Path, kind: str, data: dict[str, Any]) -> None:
    async def live() -> None:
        here = service(tmp_path)
        await here.add(LOCAL_IDENTITY, "x", kind, data)
        assert await here.reveal(WORKER_IDENTITY, "x") == data

    asyncio.run(live())


@pytest.mark.parametrize(
    ("name", "kind", "data", "words"),
    [
        (
            "x",
            "postgres",
            {"user": "u", "password": "canary"},
            "needs dsn, or host, as text; this one has password, user",
        ),
        (
            "x",
            "postgres",
            {"host": "h", "pasword": "canary"},
            "no field 'pasword'.*did you mean password",
        ),
        ("x", "postgres", {"host": 5, "password": "canary"}, "needs dsn, or host"),
        ("x", "bearer", {"tokn": "canary"}, "needs token.*did you mean token"),
        ("x", "bearer", {"token": ""}, "needs token"),
        (
            "x",
            "basic",
            {"user": "u", "password": "canary"},
            "needs username and password.*did you mean username",
        ),
        ("x", "postgre", {"dsn": "canary"}, "no kind 'postgre'.*did you mean postgres"),
        ("x", "zzz", {"dsn": "canary"}, "no kind 'zzz'.*generic takes any fields"),
        ("x", "generic", {}, "has no fields"),
        ("x", "generic", {"value": "canary" * MAX_CREDENTIAL_BYTES}, "at most"),
        ("a/b", "generic", {"a": "canary"}, "cannot be the name"),
        ("", "generic", {"a": "canary"}, "cannot be the name"),
        ("-x", "generic", {"a": "canary"}, "cannot be the name"),
        ("x" * 101, "generic", {"a": "canary"}, "cannot be the name"),
    ],
)
def test_what_a_kind_does_not_take_is_refused_without_repeating_it(
    tmp_path: Path, name: str, kind: str, data: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        asyncio.run(service(tmp_path).add(LOCAL_IDENTITY, name, kind, data))
    said = f"{refused.value} {refused.value.hint}"
    assert re.search(words, said), said
    assert "canary" not in said
    assert not (tmp_path / "credentials.key").exists()


def test_rows_cannot_be_swapped_and_kinds_cannot_be_changed(tmp_path: Path) -> None:
    async def live() -> None:
        vault = VaultMemory(FixedClock())
        here = service(tmp_path, vault)
        await here.add(LOCAL_IDENTITY, "prod", "postgres", SECRET)
        await here.add(LOCAL_IDENTITY, "test", "postgres", {"dsn": "d"})
        test = await vault.find(LOCAL_IDENTITY.tenant, "test")
        prod = await vault.find(LOCAL_IDENTITY.tenant, "prod")
        assert test is not None
        assert prod is not None
        await vault.put(LOCAL_IDENTITY.tenant, "test", prod.kind, prod.data, 11)
        await vault.put(LOCAL_IDENTITY.tenant, "prod", "generic", prod.data, 12)
        await vault.put(STRANGER.tenant, "prod", prod.kind, prod.data, prod.version)
        for who, name in ((WORKER_IDENTITY, "test"), (WORKER_IDENTITY, "prod"), (STRANGER, "prod")):
            with pytest.raises(CredentialUnreadable, match="belongs to another"):
                await here.reveal(who, name)
        (row,) = [
            each
            for each in await vault.list_sealed_credentials(LOCAL_IDENTITY.tenant)
            if each.name == "test"
        ]
        assert await vault.reseal(LOCAL_IDENTITY.tenant, row, test.data, test.version)
        assert await here.reveal(WORKER_IDENTITY, "test") == {"dsn": "d"}

    asyncio.run(live())


def test_without_its_key_a_credential_is_not_opened_and_no_second_key_is_made(
    tmp_path: Path,
) -> None:
    async def live() -> None:
        vault = VaultMemory(FixedClock())
        await service(tmp_path / "one", vault).add(LOCAL_IDENTITY, "db", "postgres", SECRET)
        other = service(tmp_path / "two", vault)
        assert await other.list_unreadable(LOCAL_IDENTITY) == ["db"]
        with pytest.raises(CredentialUnreadable, match=r"credentials\.key is not there") as refused:
            await other.reveal(WORKER_IDENTITY, "db")
        assert "copy the key file" in (refused.value.hint or "")
        with pytest.raises(CredentialUnreadable, match="'db' was sealed with the key"):
            await other.add(LOCAL_IDENTITY, "more", "bearer", {"token": "t"})
        assert not (tmp_path / "two").exists()

        KeyFile(tmp_path / "two").get_sealing_key()
        with pytest.raises(
            CredentialUnreadable, match=r"was sealed with the key .*, and .*credentials\.key has"
        ):
            await other.reveal(WORKER_IDENTITY, "db")
        await other.add(
            LOCAL_IDENTITY, "db", "postgres", SECRET
        )  # the key is lost: stored again, it can be opened
        assert await other.reveal(WORKER_IDENTITY, "db") == SECRET
        assert await other.list_unreadable(LOCAL_IDENTITY) == []

    asyncio.run(live())


def test_a_new_key_seals_and_the_old_one_still_opens(tmp_path: Path) -> None:
    async def live() -> None:
        here, file = service(tmp_path), tmp_path / "credentials.key"
        await here.add(LOCAL_IDENTITY, "db", "postgres", SECRET)
        old = file.read_text()
        file.write_text(base64.b64encode(b"n" * 32).decode() + "\n" + old)
        assert await here.reveal(WORKER_IDENTITY, "db") == SECRET
        await here.add(LOCAL_IDENTITY, "db", "postgres", SECRET)
        file.write_text(file.read_text().removesuffix(old))
        assert await here.reveal(WORKER_IDENTITY, "db") == SECRET

    asyncio.run(live())


def test_a_row_that_is_not_ours_is_foreign(tmp_path: Path) -> None:
    async def live() -> None:
        vault = VaultMemory(FixedClock())
        here = service(tmp_path, vault)
        added = await here.add(LOCAL_IDENTITY, "db", "postgres", SECRET)
        await vault.put(LOCAL_IDENTITY.tenant, "db", added.kind, b"plain text", 99)
        with pytest.raises(CredentialUnreadable, match=r"'db' was sealed with the key \?"):
            await here.reveal(WORKER_IDENTITY, "db")

    asyncio.run(live())


# ---- versions and rotation -----------------------------------------------------------------------------------------------


async def read_row(vault: VaultMemory, name: str = "db") -> SealedCredential:
    row = await vault.find(LOCAL_IDENTITY.tenant, name)
    assert row is not None
    return row


async def seal_without_version(vault: VaultMemory, home: Path, name: str = "db") -> None:
    """As servers did before there were versions."""
    place = CredentialIdentity(LOCAL_IDENTITY.tenant, name, "generic")
    data = seal(KeyFile(home).get_sealing_key(), place, b'{"value":"old"}')
    await vault.put(LOCAL_IDENTITY.tenant, name, "generic", data, 0)


def add_key(home: Path) -> str:
    """A new key before the others, as the documentation says. Returns its id."""
    path = home / KEY_FILE_NAME
    key = make_sealing_key()
    new = home / "new.key"
    new.touch(0o600)
    new.write_bytes(base64.b64encode(key.secret) + b"\n" + path.read_bytes())
    new.rename(path)
    return key.id


def test_older_value_that_is_put_back_does_not_open(tmp_path: Path) -> None:
    async def live() -> None:
        vault = VaultMemory(FixedClock())
        here = service(tmp_path, vault)
        await here.add(LOCAL_IDENTITY, "db", "generic", {"value": "first"})
        first = await read_row(vault)
        await here.add(LOCAL_IDENTITY, "db", "generic", {"value": "second"})
        second = await read_row(vault)
        assert second.version > first.version
        assert await vault.reseal(LOCAL_IDENTITY.tenant, second, first.data, second.version)
        with pytest.raises(CredentialUnreadable, match="is an older one"):
            await here.reveal(WORKER_IDENTITY, "db")

    asyncio.run(live())


def test_deleted_credential_does_not_give_its_version_to_another(tmp_path: Path) -> None:
    async def live() -> None:
        vault = VaultMemory(FixedClock())
        here = service(tmp_path, vault)
        await here.add(LOCAL_IDENTITY, "db", "generic", {"value": "first"})
        first = await read_row(vault)
        await here.delete(LOCAL_IDENTITY, "db")
        await here.add(LOCAL_IDENTITY, "db", "generic", {"value": "second"})
        second = await read_row(vault)
        await vault.reseal(LOCAL_IDENTITY.tenant, second, first.data, second.version)
        with pytest.raises(CredentialUnreadable):
            await here.reveal(WORKER_IDENTITY, "db")

    asyncio.run(live())


def test_value_of_the_old_format_opens_until_it_is_rewrapped(tmp_path: Path) -> None:
    async def live() -> None:
        vault = VaultMemory(FixedClock())
        here = service(tmp_path, vault)
        await seal_without_version(vault, tmp_path)
        old = await read_row(vault)
        assert await here.reveal(WORKER_IDENTITY, "db") == {"value": "old"}

        assert (await here.rewrap(LOCAL_IDENTITY)).rewrapped == 1
        new = await read_row(vault)
        assert new.version > 0
        assert await here.reveal(WORKER_IDENTITY, "db") == {"value": "old"}
        for version in (new.version, 0):  # the second: somebody who can change the whole row
            await vault.reseal(LOCAL_IDENTITY.tenant, await read_row(vault), old.data, version)
            with pytest.raises(CredentialUnreadable) as refused:
                await here.reveal(WORKER_IDENTITY, "db")
        assert "put an old row back" in (refused.value.hint or "")

    asyncio.run(live())


def test_rewrap_is_resumed_and_the_old_key_is_not_needed_afterwards(tmp_path: Path) -> None:
    async def live() -> None:
        vault = VaultMemory(FixedClock())
        here = service(tmp_path, vault)
        for number in range(5):
            await here.add(LOCAL_IDENTITY, f"c{number}", "generic", {"value": str(number)})
        await seal_without_version(vault, tmp_path, "old")
        key = add_key(tmp_path)
        done = [await here.rewrap(LOCAL_IDENTITY, 4) for _ in range(3)]
        assert [(each.rewrapped, each.left, each.key) for each in done] == [
            (4, 2, key),
            (2, 0, key),
            (0, 0, key),
        ]
        lines = (tmp_path / KEY_FILE_NAME).read_bytes().splitlines(keepends=True)
        (tmp_path / KEY_FILE_NAME).write_bytes(lines[0])
        for number in range(5):
            found = await here.reveal(WORKER_IDENTITY, f"c{number}")
            assert found == {"value": str(number)}
        assert await here.reveal(WORKER_IDENTITY, "old") == {"value": "old"}

    asyncio.run(live())


def test_credential_that_no_key_opens_is_named_and_the_others_are_rewrapped(tmp_path: Path) -> None:
    async def live() -> None:
        vault = VaultMemory(FixedClock())
        here = service(tmp_path, vault)
        await here.add(LOCAL_IDENTITY, "lost", "generic", {"value": "x"})
        (tmp_path / KEY_FILE_NAME).unlink()
        done = await here.rewrap(LOCAL_IDENTITY)
        assert (done.unreadable, done.key) == (["lost"], None)
        assert not (tmp_path / KEY_FILE_NAME).exists()  # no second key is made
        await seal_without_version(vault, tmp_path, "db")
        done = await here.rewrap(LOCAL_IDENTITY)
        assert (done.rewrapped, done.left, done.unreadable) == (1, 0, ["lost"])
        assert not KeyFile(tmp_path).requires_versions()

    asyncio.run(live())
