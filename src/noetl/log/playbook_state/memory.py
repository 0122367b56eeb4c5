"""State between executions in the memory twin: the same rules as `put_state` in the schema."""

from itertools import islice

import msgspec

from noetl.log.playbook_state.limits import check_put, encode_state
from noetl.log.playbook_state.port import StateRow
from noetl.log.tables import MemoryDatabase, StateKey
from noetl.model.ids import Tenant
from noetl.model.playbook_state import MAX_STATE_NAMES, StateValue

_state_row_decoder = msgspec.json.Decoder(StateRow)


class PlaybookStateMemory:
    def __init__(self, database: MemoryDatabase) -> None:
        self._db = database

    async def read_state(
        self, tenant: Tenant, path: str, names: list[str] | None = None
    ) -> list[StateRow]:
        places = self._db.list_state_keys(tenant, path)
        if names is not None:
            places = [place for place in places if place.name in names]
        rows = [self._db.read_state_row(*place) for place in places]
        return [row for row in rows if row is not None]

    async def list_state(
        self, tenant: Tenant, after: tuple[str, str], limit: int
    ) -> list[StateRow]:
        of_tenant = [place for place in sorted(self._db.states) if place.tenant == tenant]
        places = [place for place in of_tenant if (place.path, place.name) > after]
        rows = (self._db.read_state_row(*place) for place in places)
        present = (row for row in rows if row is not None and not row.unset)
        return list(islice(present, limit))

    async def read_history(
        self, tenant: Tenant, path: str, name: str, before: int, limit: int
    ) -> list[StateRow]:
        versions = self._db.states.get(StateKey(tenant, path, name), [])
        rows = [_state_row_decoder.decode(data) for data in reversed(versions)]
        return [row for row in rows if row.version < before][:limit]

    async def put_state(
        self,
        tenant: Tenant,
        path: str,
        name: str,
        value: StateValue,
        expected: int | None,
        by: str | None,
    ) -> int:
        encode_state(name, value)
        row = self._db.read_state_row(tenant, path, name)
        version = 0 if row is None else row.version
        is_full = row is None and len(self._db.list_state_keys(tenant, path)) >= MAX_STATE_NAMES
        check_put(path, name, expected in (None, version), is_full, version, expected)
        written = StateRow(
            path=path,
            name=name,
            version=version + 1,
            value=value.value,
            unset=value.unset,
            by=by,
            at=self._db.clock.now(),
        )
        self._db.write_state(tenant, written)
        return written.version
