"""Reads the items that a loop ran over: from the event that started it, the workload, a stored list,
or the rows that a cursor claimed."""

from typing import Any

from noetl.engine.expressions import Moment
from noetl.engine.loops import find_workload_items
from noetl.engine.state import Activation
from noetl.log.events.port import EventLog, EventName
from noetl.model import events as e
from noetl.model.ids import ActivationId, CommandId
from noetl.model.reference import Reference, parse_result_key, parse_uri
from noetl.model.secrets import strip_secrets
from noetl.server.dispatch.states import LoadedState
from noetl.server.items.runs import StepRun
from noetl.server.items.scan import FoundRow, ReadRows

MAX_GAP_ITEMS = 200  # items between two wanted ones that are read with them


class ItemReader:
    """The items of one run of a loop, by index."""

    def __init__(
        self,
        log: EventLog,
        read_rows: ReadRows,
        loaded: LoadedState,
        run: StepRun,
        collection: e.Collection | None,
    ) -> None:
        self._log = log
        self._read_rows = read_rows
        self._loaded = loaded
        self._run = run
        self._collection = collection

    async def read_items(self, found: list[FoundRow]) -> dict[int, Any]:
        """The items of these rows, by index. An item that cannot be read is missing."""
        collection = self._collection
        if collection is None or not found:
            return {}
        if collection.kind == "cursor":
            return await self._read_claimed_rows(found)
        indexes = sorted({row.row["index"] for row in found})
        if collection.reference is not None:
            return await self._read_stored_items(collection.reference, indexes)
        items = collection.items or tuple(self._list_workload_items())
        return {index: strip_secrets(items[index]) for index in indexes if index < len(items)}

    def _list_workload_items(self) -> list[Any]:
        step = self._run.step
        activation = Activation(
            id=ActivationId(""),
            step=step,
            run=self._run.run,
            cause="",
            args=self._run.args,
        )
        moment = Moment("items", self._loaded.state.last_at)
        return find_workload_items(self._loaded.fixed, self._loaded.state, activation, moment)

    async def _read_stored_items(self, reference: Reference, indexes: list[int]) -> dict[int, Any]:
        """Read neighbouring items together."""
        items: dict[int, Any] = {}
        ranges: list[tuple[int, int]] = []
        for index in indexes:
            if ranges and index - ranges[-1][1] <= MAX_GAP_ITEMS:
                ranges[-1] = (ranges[-1][0], index + 1)
            else:
                ranges.append((index, index + 1))
        for start, stop in ranges:
            rows = await self._read_rows(reference, start, stop)
            items |= dict(enumerate(rows, start))
        return {index: items[index] for index in indexes if index in items}

    async def _read_claimed_rows(self, found: list[FoundRow]) -> dict[int, Any]:
        """The rows of frames: their events say where a frame began, and where its rows are."""
        commands = {find_command_id(row) for row in found} - {None}
        execution_id = self._loaded.fixed.execution_id
        names = [EventName(execution_id, f"frame:{command}") for command in commands]
        names += [EventName(execution_id, f"command:{command}:issued") for command in commands]
        begins: dict[CommandId, int] = {}
        frames: dict[CommandId, Reference] = {}
        for recorded in await self._log.read_named_events(names):
            match recorded.event:
                case e.CommandIssued() as issued:
                    begins[issued.command_id] = issued.first
                case e.FrameClaimed() as claimed if claimed.reference is not None:
                    frames[claimed.command_id] = claimed.reference
        return await self._read_frames(found, begins, frames)

    async def _read_frames(
        self,
        found: list[FoundRow],
        begins: dict[CommandId, int],
        frames: dict[CommandId, Reference],
    ) -> dict[int, Any]:
        items: dict[int, Any] = {}
        for command, reference in frames.items():
            if command not in begins:
                continue
            # Rows of a frame count from its first item, before the frame has its place in the loop.
            indexes = {
                row.row["index"] - row.part.shift - begins[command]: row.row["index"]
                for row in found
                if find_command_id(row) == command
            }
            claimed = await self._read_stored_items(reference, sorted(indexes))
            items |= {indexes[number]: item for number, item in claimed.items()}
        return items


def find_command_id(found: FoundRow) -> CommandId | None:
    """The command that ran the item, from the address of its result."""
    origin = parse_result_key(parse_uri(found.part.reference.uri).key)
    return None if origin is None else origin.command_id
