"""The contract of playbook state: values that executions of a playbook leave for the next."""

from typing import Any, Protocol

from msgspec import Struct

from noetl.model.ids import ExecutionId, Micros, Tenant
from noetl.model.playbook_state import StateValue


class StateRow(Struct, frozen=True, kw_only=True):
    """One version of a state value. An execution wrote it with the event `seq`, or a person did."""

    path: str
    name: str
    version: int
    value: Any = None
    unset: bool = False
    execution_id: ExecutionId | None = None
    seq: int | None = None
    by: str | None = None
    at: Micros = 0


class PlaybookStateStore(Protocol):
    async def read_state(
        self, tenant: Tenant, path: str, names: list[str] | None = None
    ) -> list[StateRow]:
        """The values by name, including unset ones. `names` None: all of the path."""
        ...

    async def list_state(
        self, tenant: Tenant, after: tuple[str, str], limit: int
    ) -> list[StateRow]:
        """The values after (path, name), without unset ones."""
        ...

    async def read_history(
        self, tenant: Tenant, path: str, name: str, before: int, limit: int
    ) -> list[StateRow]:
        """Versions older than `before`, newest first. At most MAX_STATE_VERSIONS are stored."""
        ...

    async def put_state(
        self,
        tenant: Tenant,
        path: str,
        name: str,
        value: StateValue,
        expected: int | None,
        by: str | None,
    ) -> int:
        """Write a value for a person. Returns the new version; the version in `value` is ignored.

        `expected` None overwrites any version. Raises Conflict if the value has another version, or
        if the path has MAX_STATE_NAMES names. Raises InvalidInput if the value cannot be stored.
        """
        ...
