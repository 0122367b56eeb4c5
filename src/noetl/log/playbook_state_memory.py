"""State between executions, for the twin in memory: what `check_state`, `write_state` and `put_state` of the schema do."""

from itertools import islice

import msgspec

from noetl.log.limits import check_put, encoded_state
from noetl.log.port import ExecutionPart, Known, Outcome, StateChanged, StateRow
from noetl.log.tables import MemoryDatabase
from noetl.model.decisions import SetState
from noetl.model.ids import ExecutionId, Tenant
from noetl.model.playbook_state import MAX_STATE_NAMES, StateValue

Place = tuple[Tenant, str, str]  # a name of a path
_row = msgspec.json.Decoder(StateRow)


class PlaybookStateMemory:
    """A part of `LogMemory`."""

    def __init__(self, database: MemoryDatabase) -> None:
        self._db = database

    def refuse(
        self, parts: tuple[ExecutionPart, ...], refused: list[Outcome | None]
    ) -> list[Outcome | None]:
        """Parts that write a state value of another version, or one that an earlier part of the batch writes, or one name more
        than a path may have."""
        seen: dict[Place, ExecutionId] = {}
        return [
            refusal or self._conflict(part, _writes(part), seen)
            for part, refusal in zip(parts, refused, strict=True)
        ]

    def _conflict(
        self, part: ExecutionPart, writes: list[SetState], seen: dict[Place, ExecutionId]
    ) -> Outcome | None:
        written: dict[Place, int] = {}
        for write in writes:
            place = (part.tenant, write.path, write.name)
            if seen.get(place, part.execution_id) != part.execution_id:
                return Known(part.execution_id)
            row = self._db.state(*place)
            current = written.get(place, row.version if row is not None else 0)
            if current != write.expected:
                by = None if row is None else row.execution_id or row.by
                return StateChanged(part.execution_id, write.name, current, by)
            if row is None and place not in seen:
                is_full = self._too_many_names(part, write.path, seen)
                if is_full is not None:
                    return (
                        StateChanged(part.execution_id, write.name, 0, None, True)
                        if is_full
                        else Known(part.execution_id)
                    )
            seen[place] = part.execution_id
            written[place] = current + 1
        return None

    def _too_many_names(
        self, part: ExecutionPart, path: str, seen: dict[Place, ExecutionId]
    ) -> bool | None:
        """None: there is room for one more. False: there may be room when other parts of the batch leave it."""
        there = {place for place in self._db.states if place[:2] == (part.tenant, path)}
        new = {
            place: by
            for place, by in seen.items()
            if place[:2] == (part.tenant, path) and place not in there
        }
        of_part = sum(by == part.execution_id for by in new.values())
        if len(there) + of_part >= MAX_STATE_NAMES:
            return True
        return False if len(there) + len(new) >= MAX_STATE_NAMES else None

    def read(self, tenant: Tenant, path: str, names: list[str] | None) -> list[StateRow]:
        found = [place for place in sorted(self._db.states) if place[:2] == (tenant, path)]
        wanted = [place for place in found if names is None or place[2] in names]
        return [row for place in wanted if (row := self._db.state(*place)) is not None]

    def page(self, tenant: Tenant, after: tuple[str, str], limit: int) -> list[StateRow]:
        places = [
            place for place in sorted(self._db.states) if place[0] == tenant and place[1:] > after
        ]
        rows = (
            row for place in places if (row := self._db.state(*place)) is not None and not row.unset
        )
        return list(islice(rows, limit))

    def history(
        self, tenant: Tenant, path: str, name: str, before: int, limit: int
    ) -> list[StateRow]:
        rows = [_row.decode(data) for data in self._db.states.get((tenant, path, name), [])]
        return [row for row in reversed(rows) if row.version < before][:limit]

    def put(
        self,
        tenant: Tenant,
        path: str,
        name: str,
        value: StateValue,
        expected: int | None,
        by: str | None,
    ) -> int:
        encoded_state(name, value)
        row = self._db.state(tenant, path, name)
        version = row.version if row is not None else 0
        names = [place for place in self._db.states if place[:2] == (tenant, path)]
        is_full = row is None and len(names) >= MAX_STATE_NAMES
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


def _writes(part: ExecutionPart) -> list[SetState]:
    return [effect for effect in part.effects if isinstance(effect, SetState)]


def write_state(db: MemoryDatabase, part: ExecutionPart, effect: SetState) -> None:
    """Called before the part's events are there: they get the shard's next numbers."""
    keys = [event.key for event in part.events]
    written = StateRow(
        path=effect.path,
        name=effect.name,
        version=effect.expected + 1,
        value=effect.value,
        execution_id=part.execution_id,
        seq=db.shards[part.shard].last_seq + keys.index(effect.event) + 1,
        at=db.clock.now(),
    )
    db.write_state(part.tenant, written)
