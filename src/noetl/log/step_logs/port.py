"""The contract of step logs: lines that steps printed, in the order of their commits."""

from typing import Protocol

from msgspec import Struct

from noetl.model.ids import ExecutionId
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
    async def put_parts(self, parts: tuple[StoredRef, ...]) -> None:
        """Store payloads with addresses of kind `log`.

        Parts that are stored already, and parts of unknown executions, are skipped.
        """
        ...

    async def read_parts(
        self, execution_id: ExecutionId, step: str | None, after: int, limit: int
    ) -> list[LogPart]: ...
