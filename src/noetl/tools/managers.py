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

GROUP = "noetl.secret_managers"
FOLDER = "NOETL_SECRETS_DIR"
LARGEST = 1 << 20  # bytes


class Manager(Protocol):
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
        return await asyncio.to_thread(self._read, name)

    def _read(self, name: str) -> str:
        folder = self._environment.get(FOLDER)
        if folder is None:
            raise InvalidInput(
                f"the provider file needs {FOLDER}: the folder in which the worker finds secrets"
            )
        root = Path(folder).resolve()
        path = Path(folder, name).resolve()  # a mounted secret is a link inside its folder
        if not path.is_relative_to(root) or not path.is_file():
            raise NotFound(f"there is no secret {name!r} in {FOLDER}")
        with path.open("rb") as file:
            data = file.read(LARGEST + 1)
        if len(data) > LARGEST:
            raise InvalidInput(f"the secret {name!r} is larger than {LARGEST} bytes")
        try:
            return data.decode().rstrip("\n")
        except UnicodeDecodeError:
            raise InvalidInput(f"the secret {name!r} is not text") from None


class Managers:
    """The secret managers of one worker, each made on first use."""

    def __init__(self, known: Mapping[str, Manager] | None = None) -> None:
        self._made: dict[str, Manager] = dict(known or {})

    async def get(self, provider: str, name: str) -> Any:
        if provider not in self._made:
            if provider == "file":
                self._made[provider] = SecretFiles()
            else:
                self._made[provider] = await asyncio.to_thread(_outside, provider)
        return await self._made[provider].get(name)


def _outside(provider: str) -> Manager:
    points = entry_points(group=GROUP)
    if provider not in points.names:
        known = ", ".join(sorted({"file", *points.names}))
        message = f"there is no secret manager {provider!r} here, only {known}"
        raise InvalidInput(
            message, hint=f"install the package that brings it (entry point {GROUP})"
        )
    make = points[provider].load()
    manager: Manager = make()
    return manager
