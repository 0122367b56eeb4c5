"""The tokens of a home: files by which commands and workers of this machine call its servers.

A server makes them at its start. Only the user of the home can read them. They are sent only to
servers that run on this home: each says in its lock file where it listens (`running_servers.py`),
so no other program that listens on the machine gets a token.
"""

import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path
from tempfile import mkstemp
from typing import Literal
from urllib.parse import urlsplit

from noetl.accounts.texts import RANDOM_BYTES, make_token_text, read_token_id
from noetl.model.errors import InvalidInput
from noetl.runtime.lock_files import list_live_files
from noetl.runtime.running_servers import FOLDER as SERVER_FOLDER
from noetl.runtime.running_servers import LockedServer
from noetl.settings import HomeSettings, read_settings

FOLDER = "tokens"
DEFAULT_PORTS = {"http": 80, "https": 443}
MAX_TOKEN_FILE_BYTES = 1_000

# admin: for the commands of the user. worker: for the workers of the home.
LocalRole = Literal["admin", "worker"]
LOCAL_ROLES: tuple[LocalRole, ...] = ("admin", "worker")


def read_token_file(home: Path, role: LocalRole) -> str | None:
    """The token of this home; None if no server has made it yet.

    Raises `InvalidInput` if other users can read the file.
    """
    path = home / FOLDER / role
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read(MAX_TOKEN_FILE_BYTES).decode("ascii", "replace").strip()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InvalidInput(
            f"{path}: {error.strerror}", hint="the user of NOETL_HOME must be able to read it"
        ) from error
    if mode & 0o077:
        raise InvalidInput(
            f"{path} is open to other users (mode {stat.S_IMODE(mode):04o})",
            hint=f"remove {path} and start the server again: it makes another token. Revoke this one with noetl token revoke",
        )
    if read_token_id(text) is None:
        raise InvalidInput(f"{path} has no token", hint="remove it and start the server again")
    return text


def make_token_file(home: Path, role: LocalRole) -> str:
    """Make the file if there is none. Returns the token in it: processes that start at once agree."""
    folder = home / FOLDER
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    text = make_token_text(secrets.token_bytes(RANDOM_BYTES))
    descriptor, draft = mkstemp(dir=folder, prefix=".draft-")  # mode 0600
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(f"{text}\n")
        with suppress(FileExistsError):
            os.link(draft, folder / role)
    finally:
        os.unlink(draft)
    made = read_token_file(home, role)
    assert made is not None
    return made


def remove_token_file(home: Path, role: LocalRole) -> None:
    (home / FOLDER / role).unlink(missing_ok=True)


def find_token(url: str, home: Path, role: LocalRole) -> str | None:
    """The token for the server at this address: that of the settings, else the one of the home if
    the server runs on it."""
    given = read_settings(HomeSettings).token
    if given is not None:
        return given.reveal()
    if find_own_address(url, home) is None:
        return None
    return read_token_file(home, role)


def find_own_address(url: str, home: Path) -> str | None:
    """The address of the server of this home that `url` names; None if it is another server."""
    server = find_own_server(url, home)
    return None if server is None else server.address


def find_own_server(url: str, home: Path) -> LockedServer | None:
    """The server of this home that `url` names; None if it is another server."""
    wanted = _split_address(url)
    for _, server in list_live_files(home / SERVER_FOLDER, LockedServer):
        if server.address is not None and _split_address(server.address) == wanted:
            return server
    return None


def _split_address(url: str) -> tuple[str, str, int | None]:
    """Scheme, host and port. `localhost` is the address that servers listen at by default."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:  # no address at all
        return "", url, None
    host = (parts.hostname or "").lower()
    if host == "localhost":
        host = "127.0.0.1"
    return parts.scheme, host, port or DEFAULT_PORTS.get(parts.scheme)
