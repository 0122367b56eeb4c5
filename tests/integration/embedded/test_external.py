"""`NOETL_DB_URL`: somebody else's database is used as it is, or refused in one sentence."""

import asyncio
import socket
from pathlib import Path

import pytest

from noetl.embedded import ensure
from noetl.embedded.external import DatabaseRefused, DatabaseUnavailable
from noetl.model.errors import InvalidInput
from tests.postgres import Postgres


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def test_it_is_used_as_given_and_nothing_is_started(
    database: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOETL_DB_URL", database)
    dsns = asyncio.run(ensure(home))

    assert (dsns.control, dsns.data) == (database, None)
    assert not home.exists()


def test_one_that_does_not_answer_is_named_without_its_password(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        monkeypatch.setenv("NOETL_DB_URL", f"postgresql://me:hush@127.0.0.1:{port}/mine")
        with pytest.raises(DatabaseUnavailable, match=f"127.0.0.1:{port}") as refused:
            asyncio.run(ensure(home))
    assert "hush" not in str(refused.value)
    assert "unset it to use the embedded one" in str(refused.value.hint)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"password": "hush"}, "does not let us in"),
        ({"path": "/absent"}, "there is no database absent"),
    ],
)
def test_one_that_refuses_is_named_with_the_reason(
    postgres: Postgres,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: dict[str, str],
    said: str,
) -> None:
    address = postgres.address(change.get("path", "/noetl").lstrip("/"))
    if password := change.get("password"):
        address = address.replace(address.split(":")[2].split("@")[0], password)
    monkeypatch.setenv("NOETL_DB_URL", address)
    with pytest.raises(DatabaseRefused, match=said) as refused:
        asyncio.run(ensure(home))
    assert "hush" not in str(refused.value)


@pytest.mark.parametrize("address", ["mysql://host/db", "nonsense", "postgresql://host:port/db"])
def test_what_is_no_address_is_a_mistake_of_the_caller(
    address: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOETL_DB_URL", address)
    with pytest.raises(InvalidInput, match="NOETL_DB_URL is not an address"):
        asyncio.run(ensure(home))
