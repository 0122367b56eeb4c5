"""Effects: what a decision asks for besides events. The server applies both in one transaction."""

from typing import Any, Union

from msgspec import Struct

from noetl.model.commands import Command, Journal
from noetl.model.events import Parent
from noetl.model.ids import CommandId, ExecutionId, Micros, TimerId
from noetl.model.messages import Message
from noetl.model.reference import Reference


class Issue(Struct, frozen=True):
    """Add a row to the queue. The decision also contains `command.issued`."""

    command: Command
    available_at: Micros | None = None


class Requeue(Struct, frozen=True):
    """Put the row back into the queue as a new attempt: the issued command with its journal."""

    command_id: CommandId
    attempt: int
    journal: Journal
    available_at: Micros | None = None


class Park(Struct, frozen=True):
    """Take the row from its worker. No worker can claim it until it is requeued."""

    command_id: CommandId


class Finish(Struct, frozen=True):
    """End the row as done, dead or cancelled."""

    command_id: CommandId
    status: str = "done"


class Stop(Struct, frozen=True):
    """Cancel queued and parked rows at once, which sends `Stopped` for each. The workers of leased
    rows learn of it in their next exchange."""

    commands: tuple[CommandId, ...]


class SetTimer(Struct, frozen=True):
    timer: TimerId
    due: Micros


class ClearTimer(Struct, frozen=True):
    timer: TimerId


class StartChild(Struct, frozen=True, kw_only=True):
    """Start a child, once per parent and call. `child.started` brings its id."""

    parent: Parent
    path: str
    version: str | None = None
    workload: dict[str, Any] = {}
    reference: Reference | None = None
    return_step: str | None = None
    depth: int = 1
    detached: bool = False
    pins: dict[str, int] = {}  # of the parent: they hold for all descendants


class Send(Struct, frozen=True):
    """Put a message into the inbox of another execution, in the same transaction."""

    execution_id: ExecutionId
    message: Message


class AddPart(Struct, frozen=True, omit_defaults=True):
    """Add a part to a manifest (results of a loop, pages of a call): the items [first, first +
    count), of which `failed` failed. The index of an item is the index in its row plus `shift`.
    `only`: of an earlier run of a loop, the items that this run was limited to."""

    manifest: str
    first: int
    count: int
    reference: Reference
    shift: int = 0
    failed: int = 0
    only: tuple[int, ...] = ()


class AskAdmission(Struct, frozen=True):
    """Wait for one of the `limit` places of the playbook. `Admitted` comes when one is free."""

    path: str
    limit: int


class LeaveAdmission(Struct, frozen=True):
    """Give the place to the execution that has waited longest."""

    path: str


class SetState(Struct, frozen=True):
    """Write a value of the playbook's state and increment its version, if that is `expected`.
    `event` is the key of the event that made the write."""

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
