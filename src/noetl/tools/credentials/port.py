"""Port: credentials by name.

Only workers resolve one, just before its use; it never leaves the process.
"""

import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from noetl.model.errors import InvalidInput, NotFound

CREDENTIAL_VARIABLE_PREFIX = "NOETL_CREDENTIAL_"


class Credentials(Protocol):
    async def get(self, name: str) -> dict[str, Any]:
        """The fields of a credential. Raises NotFound if there is none of this name."""
        ...


class MemoryCredentials:
    def __init__(self, known: Mapping[str, dict[str, Any]] | None = None) -> None:
        self._known = dict(known or {})

    async def get(self, name: str) -> dict[str, Any]:
        if name not in self._known:
            raise missing_credential(name)
        return dict(self._known[name])


class EnvCredentials:
    """Reads `NOETL_CREDENTIAL_<NAME>`: a JSON object, or a text for the field `value`."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self._environment = os.environ if environment is None else environment

    async def get(self, name: str) -> dict[str, Any]:
        text = self._environment.get(credential_variable(name))
        if text is None:
            raise missing_credential(name)
        if not text.lstrip().startswith("{"):
            return {"value": text}
        try:
            fields = json.loads(text)
        except ValueError:
            raise InvalidInput(f"{credential_variable(name)} is not a JSON object") from None
        return dict(fields)


def credential_variable(name: str) -> str:
    return CREDENTIAL_VARIABLE_PREFIX + re.sub(r"\W", "_", name).upper()


class ChainedCredentials:
    """Asks several places in order, until one has the credential."""

    def __init__(self, places: Sequence[Credentials]) -> None:
        self._places = places

    async def get(self, name: str) -> dict[str, Any]:
        for place in self._places:
            try:
                return await place.get(name)
            except NotFound:
                continue
        raise missing_credential(name)


def missing_credential(name: str) -> NotFound:
    """The error for a missing credential. The message says what to do: a failure has no hint."""
    return NotFound(
        f"there is no credential {name!r}: noetl credential add {name} --kind KIND --file FILE stores one, "
        f"or set {credential_variable(name)} where the worker runs"
    )


def read_variable(variable: str, environment: Mapping[str, str] | None = None) -> str:
    """A variable of the worker's environment, for a playbook.

    Playbooks cannot read worker settings.
    """
    if variable.startswith("NOETL_") and not variable.startswith(
        (CREDENTIAL_VARIABLE_PREFIX, "NOETL_SECRET_")
    ):
        raise InvalidInput(f"{variable} is a setting of the worker, not a secret for playbooks")
    if environment is None:
        environment = os.environ
    value = environment.get(variable)
    if value is None:
        raise NotFound(f"the worker has no environment variable {variable}")
    return value
