"""The state values that an append writes, in the memory twin: the same rules as `check_state` and
`write_state` in the schema.
"""

from noetl.log.events.port import ExecutionPart, Known, Outcome, StateChanged
from noetl.log.playbook_state.port import StateRow
from noetl.log.tables import MemoryDatabase, StateKey
from noetl.model.decisions import SetState
from noetl.model.ids import ExecutionId
from noetl.model.playbook_state import MAX_STATE_NAMES


class StateConflicts:
    """Finds the parts of a batch with state writes that conflict with the tables or with each other."""

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
            place = StateKey(part.tenant, write.path, write.name)
            if seen.get(place, part.execution_id) != part.execution_id:
                return Known(part.execution_id)
            row = self._db.read_state_row(*place)
            version, author = 0, None
            if row is not None:
                version, author = row.version, row.execution_id or row.by
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
        stored = self._db.list_state_keys(part.tenant, path)
        writers = [
            writer
            for place, writer in seen.items()
            if (place.tenant, place.path) == (part.tenant, path) and place not in stored
        ]
        by_part = writers.count(part.execution_id)
        if len(stored) + by_part >= MAX_STATE_NAMES:
            return True
        if len(stored) + len(writers) >= MAX_STATE_NAMES:
            return False
        return None


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
