"""Variables of an execution (`ctx`), for people.

A variable that is a list or map of a payload is a link to the result store; it is read back here.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import msgspec

from noetl.model.errors import NotFound, Unavailable
from noetl.model.identity import Identity, Permission, needs
from noetl.model.ids import ExecutionId
from noetl.model.previews import Download
from noetl.playbook.assignments import LITERAL_KEY, is_reference, is_wrapped, read_link
from noetl.server.executions.service import ExecutionService
from noetl.server.results.service import ResultService

MAX_SHOWN_BYTES = 64 * 1024  # one stored value in a list of all variables
MAX_LISTED_BYTES = 1024 * 1024  # all stored values in such a list
MAX_NESTED_BYTES = 1024 * 1024  # one stored value inside a map that is a variable


class VariableService:
    def __init__(self, executions: ExecutionService, results: ResultService) -> None:
        self._executions = executions
        self._results = results

    @needs(Permission.READ)
    async def read_all(
        self, identity: Identity, execution_id: ExecutionId, min_seq: int | None = None
    ) -> dict[str, Any]:
        """Every variable. A stored value stays a link if it is large or cannot be read here."""
        state = await self._executions.get_projected_state(identity, execution_id, min_seq)
        if state is None:
            return {}
        left = MAX_LISTED_BYTES
        variables: dict[str, Any] = {}
        for name, value in state.ctx.items():
            reader = _VariableReader(self._results, identity, min(MAX_SHOWN_BYTES, left))
            variables[name] = await reader.resolve_value(value)
            left -= reader.bytes_read
        return variables

    @needs(Permission.READ)
    async def read_one(
        self, identity: Identity, execution_id: ExecutionId, name: str, min_seq: int | None = None
    ) -> Any | Download:
        """One variable. A stored value is a download of its JSON, of any size."""
        state = await self._executions.get_projected_state(identity, execution_id, min_seq)
        if state is None or name not in state.ctx:
            raise NotFound(
                f"execution {execution_id} has no variable {name!r}",
                hint="GET /api/vars/{execution_id}",
            )
        value = state.ctx[name]
        if is_reference(value):
            return await self._results.open_stored_value(identity, read_link(value))
        reader = _VariableReader(self._results, identity, MAX_NESTED_BYTES)
        return await reader.resolve_value(value)


class _VariableReader:
    """Reads stored values, each up to a limit."""

    def __init__(self, results: ResultService, identity: Identity, limit: int) -> None:
        self._results = results
        self._identity = identity
        self._limit = limit
        self.bytes_read = 0

    async def resolve_value(self, value: Any) -> Any:
        """The value with links replaced by their data. A large or unreadable one stays a link."""
        if not isinstance(value, dict):
            return value
        if is_wrapped(value):
            return value[LITERAL_KEY]
        if not is_reference(value):
            return {name: await self.resolve_value(part) for name, part in value.items()}
        try:
            download = await self._results.open_stored_value(self._identity, read_link(value))
            data = await self._read_bytes(download)
        except (NotFound, Unavailable):
            return value
        if data is None:
            return value
        self.bytes_read += len(data)
        return msgspec.json.decode(data)

    async def _read_bytes(self, download: Download) -> bytes | None:
        """The bytes; None if there are more than the limit."""
        if download.size is not None and download.size > self._limit:
            return None
        data = b""
        parts: AsyncGenerator[bytes, None] = download.parts(0, None)
        async with aclosing(parts):
            async for part in parts:
                data += part
                if len(data) > self._limit:
                    return None
        return data
