"""The step logs in Postgres."""

from pathlib import Path

from noetl.log.step_logs.port import LogPart
from noetl.model.ids import CommandId, ExecutionId, Tenant
from noetl.model.messages import StoredRef
from noetl.model.reference import parse_uri
from noetl.postgres.pool import Database
from noetl.postgres.queries import load_queries

_SQL = load_queries(Path(__file__).with_name("step_logs.sql"))


class StepLogsPostgres:
    def __init__(self, database: Database) -> None:
        self._main = database.main

    async def put_parts(self, tenant: Tenant, parts: tuple[StoredRef, ...]) -> None:
        addresses = [parse_uri(part.reference.uri) for part in parts]
        await self._main.write(
            _SQL["put_parts"],
            tenant=tenant,
            execs=[int(address.execution_id) for address in addresses],
            steps=[address.step for address in addresses],
            refs=[int(part.reference.ref_id) for part in parts],
            uris=[part.reference.uri for part in parts],
            payloads=[part.payload or b"" for part in parts],
        )

    async def read_last_number(self, execution_id: ExecutionId) -> int:
        rows = await self._main.read(_SQL["read_last_number"], execution_id=int(execution_id))
        number: int = rows[0]["number"]
        return number

    async def read_parts(
        self,
        execution_id: ExecutionId,
        step: str | None,
        after: int,
        limit: int,
        command_id: CommandId | None = None,
    ) -> list[LogPart]:
        rows = await self._main.read(
            _SQL["read_parts"],
            execution_id=int(execution_id),
            step=step,
            command=command_id,
            after=after,
            limit=limit,
        )
        return [LogPart(**row) for row in rows]

    async def read_last_parts(
        self,
        execution_id: ExecutionId,
        step: str | None,
        limit: int,
        command_id: CommandId | None = None,
    ) -> list[LogPart]:
        rows = await self._main.read(
            _SQL["read_last_parts"],
            execution_id=int(execution_id),
            step=step,
            command=command_id,
            limit=limit,
        )
        return [LogPart(**row) for row in reversed(rows)]
