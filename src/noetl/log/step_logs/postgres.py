"""The step logs in Postgres."""

from pathlib import Path

from noetl.log.step_logs.port import LogPart
from noetl.model.ids import ExecutionId
from noetl.model.messages import StoredRef
from noetl.model.reference import parse_uri
from noetl.postgres.pool import Database
from noetl.postgres.queries import load_queries

_SQL = load_queries(Path(__file__).with_name("step_logs.sql"))


class StepLogsPostgres:
    def __init__(self, database: Database) -> None:
        self._main = database.main

    async def put_parts(self, parts: tuple[StoredRef, ...]) -> None:
        addresses = [parse_uri(part.reference.uri) for part in parts]
        await self._main.write(
            _SQL["put_parts"],
            execs=[int(address.execution_id) for address in addresses],
            steps=[address.step for address in addresses],
            refs=[int(part.reference.ref_id) for part in parts],
            uris=[part.reference.uri for part in parts],
            payloads=[part.payload or b"" for part in parts],
        )

    async def read_parts(
        self, execution_id: ExecutionId, step: str | None, after: int, limit: int
    ) -> list[LogPart]:
        rows = await self._main.read(
            _SQL["read_parts"], execution_id=int(execution_id), step=step, after=after, limit=limit
        )
        return [LogPart(**row) for row in rows]
