"""The contract of step logs: lines that steps printed, in the order of their commits."""

from typing import Protocol

from msgspec import Struct

from noetl.model.ids import CommandId, ExecutionId, Tenant
from noetl.model.messages import StoredRef


class LogPart(Struct, frozen=True):
    """Lines that a step printed, as its worker stored them.

    `number` counts the parts of an execution in the order of their commits, so a reader that has
    one part has all parts before it.
    """

    number: int
    uri: str
    payload: bytes


class StepLogStore(Protocol):
    async def put_parts(self, tenant: Tenant, parts: tuple[StoredRef, ...]) -> None:
        """Store payloads with addresses of kind `log`.

        Parts that are stored already, and parts of unknown executions and of those of other
        tenants, are skipped.
        """
        ...

    async def read_last_number(self, execution_id: ExecutionId) -> int:
        """The number of the last part of an execution; 0 if there is none."""
        ...

    async def read_parts(
        self,
        execution_id: ExecutionId,
        step: str | None,
        after: int,
        limit: int,
        command_id: CommandId | None = None,
    ) -> list[LogPart]:
        """The next parts, of a step or of a command only if one is given."""
        ...

    async def read_last_parts(
        self,
        execution_id: ExecutionId,
        step: str | None,
        limit: int,
        command_id: CommandId | None = None,
    ) -> list[LogPart]:
        """The last parts, in the order in which they came."""
        ...
