"""Secret managers: sources of secrets outside of NoETL.

`file` and `vault` are built in. Packages add others by the entry point `noetl.secret_managers`; a
playbook uses the name of the entry point as `provider`.
"""

import asyncio
import json
import os
import stat
from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Protocol

from noetl.model.errors import InvalidInput, NotFound
from noetl.model.secret_reference import SecretReference, choose_fields

SECRET_MANAGER_GROUP = "noetl.secret_managers"
SECRETS_FOLDER_VARIABLE = "NOETL_SECRETS_DIR"
MAX_SECRET_BYTES = 1 << 20  # bytes
MAX_FOLDER_SECRETS = 100  # files of a folder that is one credential
# Loaded on first use, as those of packages are.
BUILT_IN_MANAGERS = {
    "file": "noetl.tools.credentials.managers:SecretFiles",
    "vault": "noetl.tools.credentials.vault:VaultSecrets",
}


class SecretManager(Protocol):
    async def get(self, name: str) -> Any:
        """A text, or a map of texts.

        Raises NotFound if there is no such secret, Unavailable if a later call may succeed.
        """
        ...


class SecretFiles:
    """Reads each secret from a file below one folder, as container platforms mount them.

    A file is read whenever it is asked for, so a value that was replaced is used at once.
    """

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self._environment = os.environ if environment is None else environment

    async def get(self, name: str) -> str:
        return await asyncio.to_thread(self._read_secret, name)

    async def get_fields(self, name: str) -> Any:
        """The files of a folder by their names, or what `get` gives for a file."""
        return await asyncio.to_thread(self._read_fields, name)

    def _read_secret(self, name: str) -> str:
        return _read_secret_file(self._find_inside(name), name)

    def _read_fields(self, name: str) -> Any:
        path = self._find_inside(name)
        if not os.path.isdir(path):
            return _read_secret_file(path, name)
        names = sorted(file for file in os.listdir(path) if not file.startswith("."))
        if len(names) > MAX_FOLDER_SECRETS:
            raise InvalidInput(
                f"the folder {name!r} has more than {MAX_FOLDER_SECRETS} secrets",
                hint="name a folder that has the fields of one credential",
            )
        return {file: self._read_secret(f"{name}/{file}") for file in names}

    def _find_inside(self, name: str) -> Path:
        """The path without links. Raises NotFound if it is not below the folder."""
        folder = self._environment.get(SECRETS_FOLDER_VARIABLE)
        if folder is None:
            raise InvalidInput(
                f"the provider file needs {SECRETS_FOLDER_VARIABLE}: the folder in which the worker finds secrets"
            )
        try:
            root = Path(folder).resolve()
            path = Path(folder, name).resolve()  # a mounted secret is a link inside its folder
        except (ValueError, OSError, RuntimeError):  # NUL, too long, links in a circle
            raise _missing_file(name) from None
        if path == root or not path.is_relative_to(root):
            raise _missing_file(name)
        return path


def _read_secret_file(path: Path, name: str) -> str:
    try:
        # A link that was put there since is not followed, and a pipe does not block.
        opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except PermissionError:
        raise InvalidInput(
            f"the worker may not read the secret {name!r}",
            hint="let the user of the worker read the file",
        ) from None
    except OSError:
        raise _missing_file(name) from None
    try:
        if not stat.S_ISREG(os.fstat(opened).st_mode):
            raise _missing_file(name)
        with open(opened, "rb", closefd=False) as file:
            data = file.read(MAX_SECRET_BYTES + 1)
    finally:
        os.close(opened)
    if len(data) > MAX_SECRET_BYTES:
        raise InvalidInput(f"the secret {name!r} is larger than {MAX_SECRET_BYTES} bytes")
    try:
        return data.decode().rstrip("\n")
    except UnicodeDecodeError:
        raise InvalidInput(f"the secret {name!r} is not text") from None


def _missing_file(name: str) -> NotFound:
    return NotFound(f"there is no secret {name!r} in {SECRETS_FOLDER_VARIABLE}")


class SecretManagers:
    """The secret managers of one worker, each made on first use."""

    def __init__(self, known: Mapping[str, SecretManager] | None = None) -> None:
        self._made: dict[str, SecretManager] = dict(known or {})

    async def get(self, provider: str, name: str) -> Any:
        manager = await self._find_manager(provider)
        return await manager.get(name)

    async def resolve_reference(self, reference: SecretReference) -> dict[str, Any]:
        """The fields of a credential that is declared by reference."""
        manager = await self._find_manager(reference.provider)
        get_fields = getattr(manager, "get_fields", manager.get)
        secret = await get_fields(reference.path)
        if isinstance(secret, str):
            secret = _parse_fields(reference.path, secret)
        return choose_fields(reference, secret)

    async def _find_manager(self, provider: str) -> SecretManager:
        manager = self._made.get(provider)
        if manager is None:
            made = await asyncio.to_thread(_load_manager, provider)
            manager = self._made.setdefault(provider, made)
        return manager


def _parse_fields(name: str, text: str) -> dict[str, Any]:
    """The fields of a secret that is one text: a JSON object, or `value`."""
    if not text.lstrip().startswith("{"):
        return {"value": text}
    try:
        return dict(json.loads(text))
    except ValueError:
        raise InvalidInput(f"the secret {name!r} begins like a JSON object, and is none") from None


def _load_manager(provider: str) -> SecretManager:
    make: Any
    if provider in BUILT_IN_MANAGERS:
        make = resolve_name(BUILT_IN_MANAGERS[provider])
    else:
        make = _find_entry_point(provider).load()
    manager: SecretManager = make()
    return manager


def _find_entry_point(provider: str) -> Any:
    points = entry_points(group=SECRET_MANAGER_GROUP)
    if provider in points.names:
        return points[provider]
    known = ", ".join(sorted({*BUILT_IN_MANAGERS, *points.names}))
    message = f"there is no secret manager {provider!r} here, only {known}"
    raise InvalidInput(
        message, hint=f"install the package that brings it (entry point {SECRET_MANAGER_GROUP})"
    )
