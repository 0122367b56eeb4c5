"""Applies one part of a batch to the tables of the memory twin."""

from typing import assert_never

from noetl.log.events.limits import check_size
from noetl.log.events.port import Appended, ExecutionPart
from noetl.log.playbook_state.append_memory import write_state
from noetl.log.tables import FINISHED, CommandRow, MemoryDatabase
from noetl.model import codec
from noetl.model.decisions import (
    AddPart,
    AskAdmission,
    ClearTimer,
    Effect,
    Finish,
    Issue,
    LeaveAdmission,
    Park,
    Requeue,
    Send,
    SetState,
    SetTimer,
    StartChild,
    Stop,
)
from noetl.model.errors import NoetlError
from noetl.model.events import ChildStarted, Terminal
from noetl.model.ids import CommandId, ExecutionId, Micros
from noetl.model.messages import Admitted, Message, Notice, Start, Stopped


class PartWrite:
    """A part that passed every check. The constructor raises for bugs of the caller; `apply` cannot
    fail.
    """

    def __init__(self, database: MemoryDatabase, part: ExecutionPart, lease: Micros) -> None:
        self.part = part
        self._db = database
        self._lease = lease
        self._events = [(event.key, check_size(event)) for event in part.events]
        self._inboxes: dict[int, None] = {}
        self._children = iter(part.child_starts)
        starts = sum(isinstance(effect, StartChild) for effect in part.effects)
        if not starts == len(part.children) == len(part.child_starts):
            raise NoetlError(f"{starts} children to start, {len(part.child_starts)} starts given")
        for effect in part.effects:
            self._check_effect(effect)

    def _check_effect(self, effect: Effect) -> None:
        if isinstance(effect, Requeue):
            row = self._db.commands.get(effect.command_id)
            if row is None or row.status in FINISHED:
                raise NoetlError(f"command {effect.command_id} is over and cannot be queued again")
        if isinstance(effect, Issue) and effect.command.command_id in self._db.commands:
            raise NoetlError(f"command {effect.command.command_id} was issued already")

    def apply(self) -> Appended:
        part, db = self.part, self._db
        for inbox_id in part.inbox:
            db.consume_message(part.shard, inbox_id)
        for timer in part.timers:
            del db.timers[part.shard][part.execution_id, timer]
        db.store_refs(part.refs)
        for effect in part.effects:
            self._apply_effect(effect)
        for handoff in part.handoffs:
            row = db.commands.get(handoff.command_id)
            if row is not None and row.status == "queued" and row.available_at <= db.clock.now():
                db.lease_command(row, handoff.worker, self._lease)
        finishes = [effect for effect in part.effects if isinstance(effect, Finish)]
        db.delete_done([effect.command_id for effect in finishes])
        ended = any(isinstance(event, Terminal) for event in part.events)
        last = db.append(part.execution_id, self._events, ended=ended)
        return Appended(part.execution_id, last, tuple(sorted(self._inboxes)))

    def _apply_effect(self, effect: Effect) -> None:
        db, part = self._db, self.part
        match effect:
            case Issue():
                db.issue_command(effect.command, effect.available_at)
            case Requeue():
                row = db.commands[effect.command_id]
                db.requeue_command(row, effect.attempt, effect.journal, effect.available_at)
            case Park():
                self._move_command(effect.command_id, "parked")
            case Finish():
                self._move_command(effect.command_id, effect.status)
            case Stop():
                for command_id in effect.commands:
                    self._stop_command(db.commands.get(command_id))
            case SetTimer():
                db.timers[part.shard][part.execution_id, effect.timer] = effect.due
            case ClearTimer():
                db.timers[part.shard].pop((part.execution_id, effect.timer), None)
            case StartChild():
                self._start_child(effect, next(self._children))
            case Send():
                self._post_message(effect.execution_id, effect.message)
            case AddPart():
                db.manifest_tenants.setdefault(effect.manifest, part.tenant)
                db.manifests.setdefault(effect.manifest, {})[effect.first] = codec.encode(effect)
            case AskAdmission():
                self._ask_admission(effect)
            case LeaveAdmission():
                self._leave_admission(effect)
            case SetState():
                write_state(db, part, effect)
            case _:
                assert_never(effect)

    def _post_message(self, execution_id: ExecutionId, message: Message) -> None:
        if self._db.post(execution_id, message):
            self._inboxes[self._db.shard_of(execution_id)] = None

    def _move_command(self, command_id: CommandId, status: str) -> None:
        row = self._db.commands.get(command_id)
        if row is not None and row.status not in FINISHED:
            self._db.end_lease(row, status)

    def _stop_command(self, row: CommandRow | None) -> None:
        """Stop a command. One that was reported meanwhile is not stopped: its report is on the way."""
        if row is None:
            return
        if row.status == "leased":
            row.cancel = True
        elif row.status in ("queued", "parked", "lost"):
            self._db.end_lease(row, "cancelled")
            self._post_message(
                row.execution_id, Stopped(command_id=row.command_id, attempt=row.attempt)
            )

    def _start_child(self, effect: StartChild, start: Start) -> None:
        db, parent = self._db, effect.parent
        call = (parent.execution_id, parent.call)
        child = db.children.setdefault(call, start.execution_id)
        if child != start.execution_id:
            return
        db.pin_and_start(start, effect.workload)
        self._inboxes[db.shard_of(start.execution_id)] = None
        event = ChildStarted(call=parent.call, child=start.execution_id)
        self._post_message(parent.execution_id, Notice(event=event))

    def _ask_admission(self, effect: AskAdmission) -> None:
        admission = self._db.get_admission(self.part.tenant, effect.path)
        if self.part.execution_id not in admission.active:
            admission.waiting.setdefault(self.part.execution_id, effect.limit)
        self._admit_waiting(effect.path)

    def _leave_admission(self, effect: LeaveAdmission) -> None:
        admission = self._db.get_admission(self.part.tenant, effect.path)
        admission.active.pop(self.part.execution_id, None)
        admission.waiting.pop(self.part.execution_id, None)
        self._admit_waiting(effect.path)

    def _admit_waiting(self, path: str) -> None:
        """Admit executions in the order they asked. The first in line is never overtaken by one
        with a higher limit.
        """
        admission = self._db.get_admission(self.part.tenant, path)
        for execution_id, limit in list(admission.waiting.items()):
            if len(admission.active) >= limit:
                return
            del admission.waiting[execution_id]
            admission.active[execution_id] = None
            self._post_message(execution_id, Admitted())
