"""Messages to an execution: requests of people and programs, reports of workers, internal notices.

Each has a key that is unique per execution, so a message that is posted twice counts once. The
owner of the execution turns messages into events.
"""

from typing import Any, Literal, Union

from msgspec import Struct

from noetl.model.events import ChildEnded, ChildStarted, Parent, Reported
from noetl.model.ids import DEFAULT_TENANT, CommandId, ExecutionId, RefId, Tenant, TimerId
from noetl.model.reference import Lifetime, Reference

MAX_CHOSEN_ITEMS = 200  # items of one loop that a retry can be limited to


def make_stored_key(start_key: str) -> str:
    """A start key as it is stored, together with the start keys of children."""
    return f"key:{start_key}"


class RetryChoice(Struct, frozen=True, omit_defaults=True):
    """The part of an ended execution that a retry runs again: loops by name, or items of loops by
    index. What is left out stays as it ended."""

    steps: tuple[str, ...] = ()
    items: dict[str, tuple[int, ...]] = {}

    @property
    def loops(self) -> set[str]:
        return {*self.steps, *self.items}


class Start(Struct, frozen=True, omit_defaults=True, kw_only=True, tag="start"):
    """Begin an execution. Its workload is stored separately, merged over the playbook's
    defaults."""

    execution_id: ExecutionId
    path: str
    playbook: str
    version: int | None = None
    start_key: str | None = None
    tenant: Tenant = DEFAULT_TENANT
    by: str | None = None
    parent: Parent | None = None
    depth: int = 0
    retry_of: ExecutionId | None = None
    return_step: str | None = None
    pins: dict[str, int] = {}  # by path: versions of the children that it calls
    from_step: str | None = None  # of `retry_of`: this step and the steps after it run again
    workload_by_reference: bool = False  # its input may hold values of a payload of its parent
    only: RetryChoice | None = (
        None  # of `retry_of`: what runs again, if not all that did not finish
    )

    @property
    def key(self) -> str:
        return "start"

    @property
    def stored_key(self) -> str | None:
        """The start key of a request as it is stored, together with the start keys of children."""
        if self.start_key is None:
            return None
        return make_stored_key(self.start_key)


class Admitted(Struct, frozen=True, omit_defaults=True, kw_only=True, tag="admitted"):
    """The playbook's `max_concurrent` has room for this execution now."""

    @property
    def key(self) -> str:
        return "admitted"


class Cancel(Struct, frozen=True, omit_defaults=True, kw_only=True, tag="cancel"):
    request: str
    reason: Literal["requested", "parent"] = "requested"
    by: str | None = None

    @property
    def key(self) -> str:
        return f"cancel:{self.request}"


class Pause(Struct, frozen=True, omit_defaults=True, kw_only=True, tag="pause"):
    request: str
    by: str | None = None

    @property
    def key(self) -> str:
        return f"pause:{self.request}"


class Resume(Struct, frozen=True, omit_defaults=True, kw_only=True, tag="resume"):
    request: str
    by: str | None = None

    @property
    def key(self) -> str:
        return f"resume:{self.request}"


class Release(Struct, frozen=True, omit_defaults=True, kw_only=True, tag="release"):
    request: str
    by: str | None = None

    @property
    def key(self) -> str:
        return f"released:{self.request}"


class Signal(Struct, frozen=True, omit_defaults=True, kw_only=True, tag="signal"):
    name: str
    request: str
    payload: Any = None
    by: str | None = None

    @property
    def key(self) -> str:
        return f"signal:{self.request}"


class LeaseLost(Struct, frozen=True, omit_defaults=True, kw_only=True, tag="lease.lost"):
    """The lease of a command ran out, or its worker is gone. `attempt` is the lost attempt."""

    command_id: CommandId
    attempt: int
    worker: str | None = None

    @property
    def key(self) -> str:
        return f"lost:{self.command_id}:{self.attempt}"


class Stopped(Struct, frozen=True, omit_defaults=True, kw_only=True, tag="stopped"):
    """A command that is to be cancelled left the queue, or lost its lease while being stopped."""

    command_id: CommandId
    attempt: int

    @property
    def key(self) -> str:
        return f"stopped:{self.command_id}"


class TimerDue(Struct, frozen=True, omit_defaults=True, kw_only=True, tag="timer.due"):
    timer: TimerId

    @property
    def key(self) -> str:
        return f"timer:{self.timer}"


class Notice(Struct, frozen=True, omit_defaults=True, kw_only=True, tag="notice"):
    """A child's message to its parent: the event that the parent will record."""

    event: ChildStarted | ChildEnded

    @property
    def key(self) -> str:
        return self.event.key


class StoredRef(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A reference in a report. It is recorded in the report's transaction, and a small payload with
    it."""

    reference: Reference
    parent: RefId | None = None
    inputs: tuple[RefId, ...] = ()
    payload: bytes | None = None
    lifetime: Lifetime | None = None


class Report(Struct, frozen=True, omit_defaults=True, kw_only=True, tag="report"):
    """A worker's report on a command that it holds as `attempt`. The owner of the execution fills
    in `at`, step and activation."""

    execution_id: ExecutionId
    command_id: CommandId
    attempt: int
    worker: str
    event: Reported
    refs: tuple[StoredRef, ...] = ()

    @property
    def key(self) -> str:
        return f"report:{self.event.key}"


Request = Start | Admitted | Cancel | Pause | Resume | Release | Signal
Message = Union[Request, LeaseLost, Stopped, TimerDue, Notice, Report]
