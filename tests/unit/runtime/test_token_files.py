"""Tokens of a home: who can read them, and to which server they are sent."""

from pathlib import Path

import pytest

from noetl.accounts.texts import make_token_text, read_token_id, sum_token
from noetl.model.errors import InvalidInput
from noetl.runtime.lock_files import LockFile, read_boot_id
from noetl.runtime.running_servers import FOLDER, LockedServer
from noetl.runtime.token_files import (
    find_own_address,
    find_token,
    make_token_file,
    read_token_file,
    remove_token_file,
)


@pytest.fixture(autouse=True)
def _no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOETL_TOKEN", raising=False)


def lock_server(home: Path, address: str) -> LockFile:
    file = LockFile(home / FOLDER, "server")
    boot = read_boot_id() or ""
    file.acquire(LockedServer(database="d", runtime_id=1, boot=boot, address=address))
    return file


def test_a_token_names_itself_and_nothing_else() -> None:
    text = make_token_text(bytes(range(41)))
    token_id = read_token_id(text)
    assert token_id is not None
    assert text.startswith(f"noetl_{token_id}_")
    assert len(sum_token(text)) == 32
    for wrong in ("", "noetl_", text[:-1], f"{text}x", text.replace("noetl", "other"), f"{text}\n"):
        assert read_token_id(wrong) is None


def test_only_the_user_can_read_the_file(tmp_path: Path) -> None:
    assert read_token_file(tmp_path, "admin") is None
    token = make_token_file(tmp_path, "admin")
    assert make_token_file(tmp_path, "admin") == token, "processes that start at once agree"
    file = tmp_path / "tokens" / "admin"
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700
    assert [each.name for each in file.parent.iterdir()] == ["admin"]
    file.chmod(0o644)
    with pytest.raises(InvalidInput, match="open to other users"):
        read_token_file(tmp_path, "admin")
    remove_token_file(tmp_path, "admin")
    assert make_token_file(tmp_path, "admin") != token


def test_a_file_without_a_token_is_refused(tmp_path: Path) -> None:
    make_token_file(tmp_path, "worker")
    (tmp_path / "tokens" / "worker").write_text("noetl\n")
    with pytest.raises(InvalidInput, match="has no token"):
        read_token_file(tmp_path, "worker")


def test_the_token_of_a_home_goes_to_its_own_servers_only(tmp_path: Path) -> None:
    token = make_token_file(tmp_path, "admin")
    own = "http://127.0.0.1:8082"
    assert find_token(own, tmp_path, "admin") is None, "anybody may listen there"
    lock = lock_server(tmp_path, own)
    try:
        assert find_token(own, tmp_path, "admin") == token
        assert find_own_address("http://localhost:8082", tmp_path) == own
        for other in (
            "http://127.0.0.1:8083",
            "https://127.0.0.1:8082",
            "http://127.0.0.2:8082",
            "http://[::1]:8082",
            "http://evil.example:8082",
            "http://127.0.0.1:8082@evil.example",
            "http://127.0.0.1.evil.example:8082",
        ):
            assert find_token(other, tmp_path, "admin") is None, other
    finally:
        lock.release()
    assert find_token(own, tmp_path, "admin") is None, "its server is gone"


def test_a_token_of_the_settings_goes_where_the_user_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOETL_TOKEN", "given")
    assert find_token("http://elsewhere:1", tmp_path, "admin") == "given"
