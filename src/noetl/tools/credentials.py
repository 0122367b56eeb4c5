"""Port: credentials by name. Only workers ask, just before they use one; what they get never leaves the process."""

import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from noetl.model.errors import InvalidInput, NotFound

PREFIX = "NOETL_CREDENTIAL_"


class Credentials(Protocol):
    async def get(self, name: str) -> dict[str, Any]:
        """Its fields. NotFound when there is none of this name."""
        ...


class MemoryCredentials:
    def __init__(self, known: Mapping[str, dict[str, Any]] | None = None) -> None:
        self._known = dict(known or {})

    async def get(self, name: str) -> dict[str, Any]:
        if name not in self._known:
            raise missing(name)
        return dict(self._known[name])


class EnvCredentials:
    """`NOETL_CREDENTIAL_<NAME>`: a JSON object, or one text, which is then the field `value`."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self._environment = os.environ if environment is None else environment

    async def get(self, name: str) -> dict[str, Any]:
        text = self._environment.get(variable(name))
        if text is None:
            raise missing(name)
        if not text.lstrip().startswith("{"):
            return {"value": text}
        try:
            found = json.loads(text)
        except ValueError:
            raise InvalidInput(f"{variable(name)} is not a JSON object") from None
        return dict(found)


def variable(name: str) -> str:
    return PREFIX + re.sub(r"\W", "_", name).upper()


class FirstOf:
    """The first of several that knows the name."""

    def __init__(self, places: Sequence[Credentials]) -> None:
        self._places = places

    async def get(self, name: str) -> dict[str, Any]:
        for place in self._places:
            try:
                return await place.get(name)
            except NotFound:
                continue
        raise missing(name)


def missing(name: str) -> NotFound:
    """What to do stands in the sentence: a failure has no other place for it."""
    return NotFound(
        f"there is no credential {name!r}: noetl credential add {name} --kind KIND --file FILE stores one, "
        f"or set {variable(name)} where the worker runs"
    )


def from_environment(variable: str, environment: Mapping[str, str] | None = None) -> str:
    """A variable of the worker that a playbook asks for by name. The worker's own settings are not for playbooks."""
    if variable.startswith("NOETL_") and not variable.startswith((PREFIX, "NOETL_SECRET_")):
        raise InvalidInput(f"{variable} is a setting of the worker, not a secret for playbooks")
    found = (os.environ if environment is None else environment).get(variable)
    if found is None:
        raise NotFound(f"the worker has no environment variable {variable}")
    return found
