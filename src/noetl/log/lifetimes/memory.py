"""The memory twin of the lifetimes. Every method is one critical section."""

import msgspec

from noetl.log.lifetimes.expiry import expire_results
from noetl.log.lifetimes.port import JudgedCounts, ReferenceLife, StepKey, StorageUsage
from noetl.log.tables import MemoryDatabase
from noetl.model.ids import ExecutionId, Micros, RefId
from noetl.model.messages import StoredRef
from noetl.model.reference import parse_uri

_stored_ref = msgspec.json.Decoder(StoredRef)


class LifetimesMemory:
    def __init__(self, database: MemoryDatabase) -> None:
        self._db = database

    async def expire_results(
        self, grace: Micros, retention: Micros | None, limit: int
    ) -> JudgedCounts:
        return expire_results(self._db, grace, retention, limit)

    async def read_lifetimes(self, refs: list[RefId]) -> dict[RefId, ReferenceLife]:
        lives: dict[RefId, ReferenceLife] = {}
        for ref_id in refs:
            data = self._db.refs.get(ref_id)
            if data is not None:
                lifetime = _stored_ref.decode(data).lifetime
                lives[ref_id] = ReferenceLife(lifetime, self._db.expired.get(ref_id))
        return lives

    async def pin_results(self, places: list[StepKey]) -> None:
        self._db.result_pins |= dict.fromkeys(places)

    async def unpin_results(self, places: list[StepKey]) -> None:
        for place in places:
            if place in self._db.result_pins:
                del self._db.result_pins[place]
                self._db.judge_at.pop(place.execution_id, None)

    async def list_pinned_steps(self, executions: list[ExecutionId]) -> list[StepKey]:
        places = [place for place in self._db.result_pins if place.execution_id in executions]
        return sorted(places, key=lambda place: (int(place.execution_id), place.step))

    async def read_usage(self, executions: list[ExecutionId]) -> list[StorageUsage]:
        counts: dict[tuple[ExecutionId, str], StorageUsage] = {}  # by execution and tier
        for ref_id, data in self._db.refs.items():
            reference = _stored_ref.decode(data).reference
            execution_id = parse_uri(reference.uri).execution_id
            if execution_id not in executions:
                continue
            place = (execution_id, reference.type)
            known = counts.get(place, StorageUsage(*place, 0, 0, 0))
            if ref_id in self._db.expired:
                counts[place] = msgspec.structs.replace(known, expired=known.expired + 1)
            else:
                total = known.bytes + (reference.bytes or 0)
                counts[place] = msgspec.structs.replace(known, count=known.count + 1, bytes=total)
        return sorted(counts.values(), key=lambda usage: (int(usage.execution_id), usage.tier))
