"""Secret managers: sources of secrets outside of NoETL.

`file` is built in. Packages add others by the entry point `noetl.secret_managers`; a playbook uses
the name of the entry point as `provider`.
"""

import asyncio
import os
from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Protocol

from noetl.model.errors import InvalidInput, NotFound

SECRET_MANAGER_GROUP = "noetl.secret_managers"
SECRETS_FOLDER_VARIABLE = "NOETL_SECRETS_DIR"
MAX_SECRET_BYTES = 1 << 20  # bytes


class SecretManager(Protocol):
    async def get(self, name: str) -> Any:
        """A text, or a map of texts.

        Raises NotFound if there is no such secret, Unavailable if a later call may succeed.
        """
        ...


class SecretFiles:
    """Reads each secret from a file below one folder, as container platforms mount them."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self._environment = os.environ if environment is None else environment

    async def get(self, name: str) -> str:
        return await asyncio.to_thread(self._read_secret_file, name)

    def _read_secret_file(self, name: str) -> str:
        folder = self._environment.get(SECRETS_FOLDER_VARIABLE)
        if folder is None:
            raise InvalidInput(
                f"the provider file needs {SECRETS_FOLDER_VARIABLE}: the folder in which the worker finds secrets"
            )
        root = Path(folder).resolve()
        path = Path(folder, name).resolve()  # a mounted secret is a link inside its folder
        if not path.is_relative_to(root) or not path.is_file():
            raise NotFound(f"there is no secret {name!r} in {SECRETS_FOLDER_VARIABLE}")
        with path.open("rb") as file:
            data = file.read(MAX_SECRET_BYTES + 1)
        if len(data) > MAX_SECRET_BYTES:
            raise InvalidInput(f"the secret {name!r} is larger than {MAX_SECRET_BYTES} bytes")
        try:
            return data.decode().rstrip("\n")
        except UnicodeDecodeError:
            raise InvalidInput(f"the secret {name!r} is not text") from None


class SecretManagers:
    """The secret managers of one worker, each made on first use."""

    def __init__(self, known: Mapping[str, SecretManager] | None = None) -> None:
        self._made: dict[str, SecretManager] = dict(known or {})

    async def get(self, provider: str, name: str) -> Any:
        if provider not in self._made:
            if provider == "file":
                self._made[provider] = SecretFiles()
            else:
                self._made[provider] = await asyncio.to_thread(_load_manager, provider)
        return await self._made[provider].get(name)


def _load_manager(provider: str) -> SecretManager:
    points = entry_points(group=SECRET_MANAGER_GROUP)
    if provider not in points.names:
        known = ", ".join(sorted({"file", *points.names}))
        message = f"there is no secret manager {provider!r} here, only {known}"
        raise InvalidInput(
            message, hint=f"install the package that brings it (entry point {SECRET_MANAGER_GROUP})"
        )
    make = points[provider].load()
    manager: SecretManager = make()
    return manager
