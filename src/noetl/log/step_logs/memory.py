"""The memory twin of the step logs. Every method is one critical section."""

from noetl.log.step_logs.port import LogPart
from noetl.log.tables import BlobKey, LogPartRow, MemoryDatabase
from noetl.model.ids import ExecutionId
from noetl.model.messages import StoredRef
from noetl.model.reference import parse_uri


class StepLogsMemory:
    def __init__(self, database: MemoryDatabase) -> None:
        self._db = database

    async def put_parts(self, parts: tuple[StoredRef, ...]) -> None:
        for part in parts:
            where = parse_uri(part.reference.uri)
            name = BlobKey(part.reference.ref_id, part.reference.uri)
            if where.execution_id in self._db.pinned and name not in self._db.blobs:
                self._db.blobs[name] = part.payload or b""
                self._db.logs.setdefault(where.execution_id, []).append(
                    LogPartRow(where.step, name)
                )

    async def read_parts(
        self, execution_id: ExecutionId, step: str | None, after: int, limit: int
    ) -> list[LogPart]:
        entries = self._db.logs.get(execution_id, [])
        found: list[LogPart] = []
        for number, part in enumerate(entries[after:], after + 1):
            if len(found) == limit:
                break
            if step in (None, part.step):
                found.append(LogPart(number, part.blob.uri, self._db.blobs[part.blob]))
        return found
