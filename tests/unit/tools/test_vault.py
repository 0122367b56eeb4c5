"""Secrets of Vault and of mounted files, and credentials that are declared by reference."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from noetl.model.errors import InvalidInput, NotFound, Unavailable
from noetl.model.secret_reference import SecretReference, wrap_reference
from noetl.pipeline.failures import TaskFailed
from noetl.pipeline.secrets.keychain import Keychain
from noetl.playbook.model import KeychainEntry
from noetl.tools.credentials.managers import MAX_SECRET_BYTES, SecretFiles, SecretManagers
from noetl.tools.credentials.port import MemoryCredentials
from noetl.tools.credentials.vault import VaultSecrets
from tests.vault import FakeTime, VaultServer, run_vault
from tests.waiting import HANG_LIMIT_S

SECRET = "canary-vault-5fd1"
TOKEN = "hvs.canary-token-77"


@pytest.fixture
def vault() -> Iterator[VaultServer]:
    with run_vault() as server:
        server.secrets["secret/data/db"] = {"user": "etl", "password": SECRET}
        server.tokens[TOKEN] = {"ttl": 0, "renewable": False}
        yield server


def by_token(vault: VaultServer, clock: FakeTime | None = None, **more: str) -> VaultSecrets:
    environment = {"NOETL_VAULT_ADDR": vault.address, "NOETL_VAULT_TOKEN": TOKEN, **more}
    return VaultSecrets(environment, clock or FakeTime())


def by_role(vault: VaultServer, folder: Path, clock: FakeTime | None = None) -> VaultSecrets:
    vault.roles["loader"] = "canary-secret-id"
    (folder / "secret_id").write_text("canary-secret-id\n")
    environment = {
        "NOETL_VAULT_ADDR": vault.address,
        "NOETL_VAULT_ROLE_ID": "loader",
        "NOETL_VAULT_SECRET_ID_FILE": str(folder / "secret_id"),
    }
    return VaultSecrets(environment, clock or FakeTime())


def get(secrets: VaultSecrets, *names: str) -> list[Any]:
    """What several requests at the same time get."""

    async def get_together() -> list[Any]:
        async with asyncio.timeout(HANG_LIMIT_S):
            return await asyncio.gather(*(secrets.get(name) for name in names))

    return asyncio.run(get_together())


def count_reads(vault: VaultServer, path: str = "secret/data/db") -> int:
    return vault.asked.count(f"GET {path}")


def test_a_secret_is_read_with_a_token(vault: VaultServer) -> None:
    secrets = by_token(vault)
    assert get(secrets, "secret/data/db") == [{"user": "etl", "password": SECRET}]
    assert get(secrets, "secret/data/db#password") == [SECRET]
    with pytest.raises(NotFound, match="no field 'pin'; it has password, user"):
        get(secrets, "secret/data/db#pin")


def test_a_namespace_is_sent(vault: VaultServer) -> None:
    vault.namespace = "team/data"
    with pytest.raises(NotFound):
        get(by_token(vault), "secret/data/db")
    secrets = by_token(vault, NOETL_VAULT_NAMESPACE="team/data")
    assert get(secrets, "secret/data/db#user") == ["etl"]


def test_one_request_answers_all_who_ask_at_the_same_time(vault: VaultServer) -> None:
    assert get(by_token(vault), *["secret/data/db#user"] * 20) == ["etl"] * 20
    assert count_reads(vault) == 1


def test_a_secret_is_kept_for_a_bounded_time(vault: VaultServer) -> None:
    clock = FakeTime()
    secrets = by_token(vault, clock)
    get(secrets, "secret/data/db")
    vault.secrets["secret/data/db"] = {"password": "the new one"}
    clock.now += 40
    assert get(secrets, "secret/data/db#password") == [SECRET]
    clock.now += 20
    assert get(secrets, "secret/data/db#password") == ["the new one"]


def test_vault_may_be_away_until_the_secret_expires(vault: VaultServer) -> None:
    clock = FakeTime()
    secrets = by_token(vault, clock)
    get(secrets, "secret/data/db")
    vault.status = 503
    clock.now += 55
    assert get(secrets, "secret/data/db#password") == [SECRET]
    clock.now += 10
    with pytest.raises(Unavailable, match="sealed"):
        get(secrets, "secret/data/db")


def test_a_secret_that_was_deleted_is_not_used_again(vault: VaultServer) -> None:
    clock = FakeTime()
    secrets = by_token(vault, clock)
    get(secrets, "secret/data/db")
    vault.secrets["secret/data/db"] = {}
    clock.now += 50
    for _ in range(2):
        with pytest.raises(NotFound, match="deleted"):
            get(secrets, "secret/data/db")


def test_a_lease_is_renewed_before_it_ends_and_read_again_after(vault: VaultServer) -> None:
    clock = FakeTime()
    secrets = by_token(vault, clock, NOETL_VAULT_PATHS="secret,database/creds")
    vault.leased["database/creds/etl"] = {"username": "v-1", "password": SECRET}
    get(secrets, "database/creds/etl")
    clock.now += 90
    get(secrets, "database/creds/etl")
    assert count_reads(vault, "database/creds/etl") == 1
    assert vault.asked.count("POST sys/leases/renew") == 1
    vault.leases.clear()
    vault.leased["database/creds/etl"] = {"username": "v-2", "password": SECRET}
    clock.now += 90
    assert get(secrets, "database/creds/etl#username") == ["v-2"]


def test_a_login_by_role_is_renewed_and_repeated(vault: VaultServer, tmp_path: Path) -> None:
    clock = FakeTime()
    secrets = by_role(vault, tmp_path, clock)
    assert get(secrets, "secret/data/db#user") == ["etl"]
    clock.now += 85
    get(secrets, "secret/data/db")
    assert vault.asked.count("POST auth/token/renew-self") == 1
    assert vault.asked.count("POST auth/approle/login") == 1
    clock.now += 50
    vault.tokens.clear()  # revoked
    assert get(secrets, "secret/data/db#user") == ["etl"]
    clock.now += 1_000
    assert get(secrets, "secret/data/db#user") == ["etl"]
    assert vault.asked.count("POST auth/approle/login") == 3


def test_a_token_that_was_replaced_in_its_file_is_used(vault: VaultServer, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    clock = FakeTime()
    environment = {"NOETL_VAULT_ADDR": vault.address, "NOETL_VAULT_TOKEN_FILE": str(file)}
    secrets = VaultSecrets(environment, clock)
    get(secrets, "secret/data/db")
    vault.tokens = {"hvs.next": {"ttl": 0, "renewable": False}}
    file.write_text("hvs.next")
    clock.now += 50
    assert get(secrets, "secret/data/db#user") == ["etl"]


@pytest.mark.parametrize(
    ("status", "error", "words"),
    [
        (400, InvalidInput, "answers 400"),
        (403, InvalidInput, "refuses 'secret/data/db'"),
        (404, NotFound, "has `data` after its mount"),
        (307, InvalidInput, "redirect"),
        (429, Unavailable, "answers 429"),
        (500, Unavailable, "answers 500"),
        (503, Unavailable, "sealed"),
    ],
)
def test_errors_say_what_is_wrong_and_never_what_was_sent(
    vault: VaultServer, tmp_path: Path, status: int, error: type[Exception], words: str
) -> None:
    vault.status = status
    with pytest.raises(error, match=words) as raised:
        get(by_token(vault), "secret/data/db")
    assert "canary" not in str(raised.value)
    with pytest.raises(Unavailable if error is Unavailable else InvalidInput) as raised:
        get(by_role(vault, tmp_path), "secret/data/db")
    assert "canary" not in str(raised.value)


def test_a_server_that_hangs_or_is_away_is_unavailable(vault: VaultServer) -> None:
    vault.hangs = True
    with pytest.raises(Unavailable, match=r"within 0\.05 s"):
        get(by_token(vault, NOETL_VAULT_TIMEOUT_SEC="0.05"), "secret/data/db")
    away = {"NOETL_VAULT_ADDR": "http://127.0.0.1:9", "NOETL_VAULT_TOKEN": TOKEN}
    with pytest.raises(Unavailable, match="ConnectError"):
        get(VaultSecrets(away), "secret/data/db")


@pytest.mark.parametrize(
    "path",
    [
        "auth/token/lookup-self",
        "sys/leases/lookup",
        "secret/../auth/token/lookup-self",
        "secret/data/../../auth/token/lookup-self",
        "secret//data/db",
        "/secret/data/db",
        "secret/data/db?list=true",
        "secret/%2e%2e/auth/token/lookup-self",
        "secret/data/db\r\nX: y",
        "secretive/data/db",
        "cubbyhole/x",
        "",
    ],
)
def test_playbooks_read_the_paths_that_the_operator_names(vault: VaultServer, path: str) -> None:
    with pytest.raises(InvalidInput):
        get(by_token(vault), path)
    assert vault.asked == []


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({}, "NOETL_VAULT_ADDR"),
        ({"NOETL_VAULT_ADDR": "http://vault.example"}, "https"),
        ({"NOETL_VAULT_ADDR": "https://u:p@vault.example"}, "https"),
        ({"NOETL_VAULT_ADDR": "https://vault.example"}, "no login"),
        ({"NOETL_VAULT_ADDR": "https://v.example", "NOETL_VAULT_ROLE_ID": "r"}, "SECRET_ID_FILE"),
        (
            {"NOETL_VAULT_ADDR": "https://v.example", "NOETL_VAULT_TOKEN_FILE": "/nowhere"},
            "TOKEN_FILE cannot be read",
        ),
        (
            {
                "NOETL_VAULT_ADDR": "https://v.example",
                "NOETL_VAULT_TOKEN": "t",
                "NOETL_VAULT_TIMEOUT_SEC": "x",
            },
            "TIMEOUT_SEC",
        ),
    ],
)
def test_settings_that_are_wrong_are_named(environment: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        get(VaultSecrets(environment), "secret/data/db")


# ---- credentials by reference ------------------------------------------------------------------------------------------


def resolve(reference: SecretReference, **managers: Any) -> tuple[Any, Keychain]:
    chain = Keychain(
        [KeychainEntry(name="db", kind="credential", credential="db")],
        MemoryCredentials({"db": wrap_reference(reference)}),
        managers=SecretManagers(managers),
    )
    return asyncio.run(chain.resolve_auth("db")), chain


def test_a_credential_may_be_a_reference_to_vault(vault: VaultServer) -> None:
    reference = SecretReference(
        "vault", "secret/data/db", {"username": "user", "password": "password"}
    )
    fields, chain = resolve(reference, vault=by_token(vault))
    assert fields == {"username": "etl", "password": SECRET}
    assert SECRET not in chain.redactor.redact_text(f"it is {SECRET}")


def test_a_reference_says_which_field_is_missing(vault: VaultServer) -> None:
    reference = SecretReference("vault", "secret/data/db", {"token": "token"})
    with pytest.raises(TaskFailed) as failing:
        resolve(reference, vault=by_token(vault))
    assert failing.value.failure.code == "CREDENTIAL_INVALID"
    assert "has no field token; it has password, user" in failing.value.failure.message
    assert SECRET not in failing.value.failure.message


def test_a_credential_may_be_a_mounted_file_or_folder(tmp_path: Path) -> None:
    (tmp_path / "db").mkdir()
    (tmp_path / "db" / "user").write_text("etl\n")
    (tmp_path / "db" / "password").write_text(SECRET)
    (tmp_path / "db" / "..data").mkdir()
    (tmp_path / "api.json").write_text('{"token": "one"}')
    (tmp_path / "plain").write_text("two\n")
    files = SecretFiles({"NOETL_SECRETS_DIR": str(tmp_path)})
    assert resolve(SecretReference("file", "db"), file=files)[0] == {
        "user": "etl",
        "password": SECRET,
    }
    assert resolve(SecretReference("file", "api.json"), file=files)[0] == {"token": "one"}
    assert resolve(SecretReference("file", "plain", {"token": "value"}), file=files)[0] == {
        "token": "two"
    }
    (tmp_path / "plain").write_text("three\n")
    assert resolve(SecretReference("file", "plain"), file=files)[0] == {"value": "three"}


def test_files_outside_of_the_folder_are_not_read(tmp_path: Path) -> None:
    folder, outside = tmp_path / "mounted", tmp_path / "outside"
    folder.mkdir()
    outside.mkdir()
    (outside / "key").write_text(SECRET)
    (folder / "link").symlink_to(outside / "key")
    (folder / "folder").symlink_to(outside)
    (folder / "circle").symlink_to(folder / "circle")
    (folder / "sub").mkdir()
    (folder / "sub" / "out").symlink_to("../../outside/key")
    os.mkfifo(folder / "pipe")
    (folder / "large").write_bytes(b"x" * (MAX_SECRET_BYTES + 1))
    (folder / "binary").write_bytes(b"\xff\xfe")
    files = SecretFiles({"NOETL_SECRETS_DIR": str(folder)})
    for name in (
        "link", "folder", "folder/key", "circle", "sub", "sub/out", "../outside/key", str(outside / "key"), "pipe", ".", "..",
        "", "nul\0nul", "x" * 5_000,
    ):  # fmt: skip
        with pytest.raises(TaskFailed) as failing:
            resolve(SecretReference("file", name), file=files)
        assert failing.value.failure.code == "CREDENTIAL_MISSING", name
    for name in ("large", "binary"):
        with pytest.raises(TaskFailed) as failing:
            resolve(SecretReference("file", name), file=files)
        assert failing.value.failure.code == "CREDENTIAL_INVALID", name
