"""What follows from an event: more events, and effects that the shell carries out in the same transaction."""

from typing import Any, Union

from msgspec import Struct

from noetl.model.commands import Command, Journal
from noetl.model.events import Parent
from noetl.model.ids import CommandId, ExecutionId, Micros, TimerId
from noetl.model.messages import Message
from noetl.model.reference import Reference


class Issue(Struct, frozen=True):
    """A new row in the queue (`command.issued` is among the events)."""

    command: Command
    available_at: Micros | None = None


class Requeue(Struct, frozen=True):
    """The row goes back to the queue as a new attempt: the command as it was issued, with the journal so far."""

    command_id: CommandId
    attempt: int
    journal: Journal
    available_at: Micros | None = None


class Park(Struct, frozen=True):
    """The row leaves its worker and is not claimable until it is requeued."""

    command_id: CommandId


class Finish(Struct, frozen=True):
    """The row is over: done, dead or cancelled."""

    command_id: CommandId
    status: str = "done"


class Stop(Struct, frozen=True):
    """Queued or parked rows are cancelled at once (and say so with `Stopped`); leased ones are told through the exchange."""

    commands: tuple[CommandId, ...]


class SetTimer(Struct, frozen=True):
    timer: TimerId
    due: Micros


class ClearTimer(Struct, frozen=True):
    timer: TimerId


class StartChild(Struct, frozen=True, kw_only=True):
    """Start an execution known by its parent, once; the id comes back as `child.started`."""

    parent: Parent
    path: str
    version: str | None = None
    workload: dict[str, Any] = {}
    reference: Reference | None = None
    return_step: str | None = None
    depth: int = 1
    detached: bool = False
    pins: dict[str, int] = {}  # the parent's: its children's children keep to them


class Send(Struct, frozen=True):
    """A message into another execution's inbox, true when this transaction is."""

    execution_id: ExecutionId
    message: Message


class AddPart(Struct, frozen=True, omit_defaults=True):
    """One part of a manifest (a loop's results, the pages of a call): items [first, first + count). An item's index is the one
    in its row plus `shift`."""

    manifest: str
    first: int
    count: int
    reference: Reference
    shift: int = 0


class AskAdmission(Struct, frozen=True):
    """Wait for one of `limit` places of the playbook; `Admitted` comes when there is one."""

    path: str
    limit: int


class LeaveAdmission(Struct, frozen=True):
    """Give the place back; the one that waits longest gets it."""

    path: str


class SetState(Struct, frozen=True):
    """Write a value of the playbook's state, if its version is still `expected`; it becomes one more. `event` is the key of the
    event that reports the write."""

    path: str
    name: str
    value: Any
    expected: int
    event: str


Effect = Union[
    Issue,
    Requeue,
    Park,
    Finish,
    Stop,
    SetTimer,
    ClearTimer,
    StartChild,
    Send,
    AddPart,
    AskAdmission,
    LeaveAdmission,
    SetState,
]
