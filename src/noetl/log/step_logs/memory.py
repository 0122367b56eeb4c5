"""The memory twin of the step logs. Every method is one critical section."""

from noetl.log.step_logs.port import LogPart
from noetl.log.tables import BlobKey, LogPartRow, MemoryDatabase
from noetl.model.ids import CommandId, ExecutionId, Tenant
from noetl.model.messages import StoredRef
from noetl.model.reference import parse_uri


class StepLogsMemory:
    def __init__(self, database: MemoryDatabase) -> None:
        self._db = database

    async def put_parts(self, tenant: Tenant, parts: tuple[StoredRef, ...]) -> None:
        for part in parts:
            where = parse_uri(part.reference.uri)
            name = BlobKey(part.reference.ref_id, part.reference.uri)
            is_ours = self._db.find_tenant(where.execution_id) == tenant
            if is_ours and name not in self._db.blobs:
                self._db.blobs[name] = part.payload or b""
                self._db.logs.setdefault(where.execution_id, []).append(
                    LogPartRow(where.step, name)
                )

    async def read_last_number(self, execution_id: ExecutionId) -> int:
        return len(self._db.logs.get(execution_id, []))

    async def read_parts(
        self,
        execution_id: ExecutionId,
        step: str | None,
        after: int,
        limit: int,
        command_id: CommandId | None = None,
    ) -> list[LogPart]:
        parts = self._list_parts(execution_id, step, command_id)
        return [part for part in parts if part.number > after][:limit]

    async def read_last_parts(
        self,
        execution_id: ExecutionId,
        step: str | None,
        limit: int,
        command_id: CommandId | None = None,
    ) -> list[LogPart]:
        return self._list_parts(execution_id, step, command_id)[-limit:]

    def _list_parts(
        self,
        execution_id: ExecutionId,
        step: str | None,
        command_id: CommandId | None,
    ) -> list[LogPart]:
        entries = self._db.logs.get(execution_id, [])
        return [
            LogPart(number, part.blob.uri, self._db.blobs[part.blob])
            for number, part in enumerate(entries, 1)
            if step in (None, part.step)
            and (command_id is None or f"/{command_id}-" in part.blob.uri)
        ]
