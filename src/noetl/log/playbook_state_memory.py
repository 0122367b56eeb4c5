"""State between executions in the memory twin: the same rules as `check_state`, `write_state` and
`put_state` in the schema.
"""

from itertools import islice

import msgspec

from noetl.log.limits import check_put, encode_state
from noetl.log.port import ExecutionPart, Known, Outcome, StateChanged, StateRow
from noetl.log.tables import MemoryDatabase
from noetl.model.decisions import SetState
from noetl.model.ids import ExecutionId, Tenant
from noetl.model.playbook_state import MAX_STATE_NAMES, StateValue

StateKey = tuple[Tenant, str, str]  # tenant, path of the playbook, name of the value
_state_row_decoder = msgspec.json.Decoder(StateRow)


class PlaybookStateMemory:
    """A part of `LogMemory`."""

    def __init__(self, database: MemoryDatabase) -> None:
        self._db = database

    def refuse_parts(
        self, parts: tuple[ExecutionPart, ...], refused: list[Outcome | None]
    ) -> list[Outcome | None]:
        """Refuse further parts because of the state they write.

        A part is refused if a value has another version by now, if an earlier part of the batch writes
        the same value, or if the path would have too many names.
        """
        seen: dict[StateKey, ExecutionId] = {}
        return [
            refusal or self._find_conflict(part, _list_state_writes(part), seen)
            for part, refusal in zip(parts, refused, strict=True)
        ]

    def _find_conflict(
        self, part: ExecutionPart, writes: list[SetState], seen: dict[StateKey, ExecutionId]
    ) -> Outcome | None:
        versions: dict[StateKey, int] = {}
        for write in writes:
            place = (part.tenant, write.path, write.name)
            if seen.get(place, part.execution_id) != part.execution_id:
                return Known(part.execution_id)
            row = self._db.read_state_row(*place)
            version, author = _version_and_author(row)
            version = versions.get(place, version)
            if version != write.expected:
                return StateChanged(part.execution_id, write.name, version, author)
            if row is None and place not in seen:
                is_full = self._is_path_full(part, write.path, seen)
                if is_full is True:
                    return StateChanged(part.execution_id, write.name, 0, None, True)
                if is_full is False:
                    return Known(part.execution_id)
            seen[place] = part.execution_id
            versions[place] = version + 1
        return None

    def _is_path_full(
        self, part: ExecutionPart, path: str, seen: dict[StateKey, ExecutionId]
    ) -> bool | None:
        """True if the path is full, None if it has room for one more name. False if it has room
        only when other parts of the batch are refused.
        """
        stored = self._places_of(part.tenant, path)
        writers = [
            writer
            for place, writer in seen.items()
            if place[:2] == (part.tenant, path) and place not in stored
        ]
        by_part = writers.count(part.execution_id)
        if len(stored) + by_part >= MAX_STATE_NAMES:
            return True
        if len(stored) + len(writers) >= MAX_STATE_NAMES:
            return False
        return None

    def _places_of(self, tenant: Tenant, path: str) -> list[StateKey]:
        return sorted(place for place in self._db.states if place[:2] == (tenant, path))

    def read_state(self, tenant: Tenant, path: str, names: list[str] | None) -> list[StateRow]:
        places = self._places_of(tenant, path)
        if names is not None:
            places = [place for place in places if place[2] in names]
        rows = [self._db.read_state_row(*place) for place in places]
        return [row for row in rows if row is not None]

    def list_state(self, tenant: Tenant, after: tuple[str, str], limit: int) -> list[StateRow]:
        places = [
            place for place in sorted(self._db.states) if place[0] == tenant and place[1:] > after
        ]
        rows = (self._db.read_state_row(*place) for place in places)
        present = (row for row in rows if row is not None and not row.unset)
        return list(islice(present, limit))

    def state_history(
        self, tenant: Tenant, path: str, name: str, before: int, limit: int
    ) -> list[StateRow]:
        versions = self._db.states.get((tenant, path, name), [])
        rows = [_state_row_decoder.decode(data) for data in reversed(versions)]
        return [row for row in rows if row.version < before][:limit]

    def put_state(
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
        version, _ = _version_and_author(row)
        is_full = row is None and len(self._places_of(tenant, path)) >= MAX_STATE_NAMES
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


def _version_and_author(row: StateRow | None) -> tuple[int, str | None]:
    """The current version and the execution or person that wrote it."""
    if row is None:
        return 0, None
    return row.version, row.execution_id or row.by


def _list_state_writes(part: ExecutionPart) -> list[SetState]:
    return [effect for effect in part.effects if isinstance(effect, SetState)]


def write_state(db: MemoryDatabase, part: ExecutionPart, effect: SetState) -> None:
    """Write a state value. The part's events are appended later; they get the shard's next numbers."""
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
