"""State between executions in Postgres: reads, and writes by people. `append` stores the writes of
executions with their events.
"""

from pathlib import Path
from typing import Any

import msgspec

from noetl.log.playbook_state.limits import check_put, encode_state
from noetl.log.playbook_state.port import StateRow
from noetl.model.ids import ExecutionId, Tenant
from noetl.model.playbook_state import MAX_STATE_NAMES, MAX_STATE_VERSIONS, StateValue
from noetl.postgres.pool import Database, Record
from noetl.postgres.queries import load_queries

_SQL = load_queries(Path(__file__).with_name("playbook_state.sql"))


class PlaybookStatePostgres:
    def __init__(self, database: Database) -> None:
        self._main = database.main

    async def read_state(
        self, tenant: Tenant, path: str, names: list[str] | None = None
    ) -> list[StateRow]:
        rows = await self._main.read(_SQL["read_state"], tenant=tenant, path=path, names=names)
        return [_decode_row(row) for row in rows]

    async def list_state(
        self, tenant: Tenant, after: tuple[str, str], limit: int
    ) -> list[StateRow]:
        path, name = after
        rows = await self._main.read(
            _SQL["list_state"], tenant=tenant, path=path, name=name, limit=limit
        )
        return [_decode_row(row) for row in rows]

    async def read_history(
        self, tenant: Tenant, path: str, name: str, before: int, limit: int
    ) -> list[StateRow]:
        rows = await self._main.read(
            _SQL["read_history"], tenant=tenant, path=path, name=name, before=before, limit=limit
        )
        return [_decode_row(row) for row in rows]

    async def put_state(
        self,
        tenant: Tenant,
        path: str,
        name: str,
        value: StateValue,
        expected: int | None,
        by: str | None,
    ) -> int:
        encoded = encode_state(name, value)
        (row,) = await self._main.write(
            _SQL["put_state"],
            tenant=tenant,
            path=path,
            name=name,
            value=encoded,
            expected=expected,
            by=by,
            kept=MAX_STATE_VERSIONS,
            most=MAX_STATE_NAMES,
        )
        check_put(path, name, row["written"], row["is_full"], row["version"], expected)
        version: int = row["version"]
        return version


def _decode_row(row: Record) -> StateRow:
    columns: dict[str, Any] = dict(row)
    value = columns.pop("value")
    execution = columns.pop("execution_id")
    return StateRow(
        value=None if value is None else msgspec.json.decode(value),
        unset=value is None,
        execution_id=None if execution is None else ExecutionId(str(execution)),
        **columns,
    )
