"""What reaches an execution from elsewhere: requests of people and programs, reports of workers, notices of other parts.

Each has a key, unique per execution: posting it twice is posting it once. The owner of the execution turns it into events.
"""

from typing import Any, Literal, Union

from msgspec import Struct

from noetl.model.events import ChildEnded, ChildStarted, Parent, Reported
from noetl.model.ids import DEFAULT_TENANT, CommandId, ExecutionId, RefId, Tenant, TimerId
from noetl.model.reference import Lifetime, Reference


class Start(Struct, frozen=True, omit_defaults=True, kw_only=True, tag="start"):
    """Begin an execution. The workload is stored beside it, already merged over the playbook's defaults."""

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
    pins: dict[str, int] = {}  # versions of the children that it calls, by path
    from_step: str | None = (
        None  # of `retry_of`: this step and what follows from it run again, whatever they gave
    )
    workload_by_reference: bool = False  # its input may hold values of a payload of its parent

    @property
    def key(self) -> str:
        return "start"

    @property
    def stored_key(self) -> str | None:
        """The start key of a request as it stands in the table of them, beside those of children."""
        return None if self.start_key is None else f"key:{self.start_key}"


class Admitted(Struct, frozen=True, omit_defaults=True, kw_only=True, tag="admitted"):
    """`max_concurrent` of the playbook leaves room for this execution now."""

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
    """The command's lease ran out, or its worker is gone. `attempt` is the one that was lost."""

    command_id: CommandId
    attempt: int
    worker: str | None = None

    @property
    def key(self) -> str:
        return f"lost:{self.command_id}:{self.attempt}"


class Stopped(Struct, frozen=True, omit_defaults=True, kw_only=True, tag="stopped"):
    """A command that was to be cancelled has left the queue, or its lease ran out while it was being stopped."""

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
    """What a child tells its parent: the event as the parent will record it."""

    event: ChildStarted | ChildEnded

    @property
    def key(self) -> str:
        return self.event.key


class StoredRef(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A reference that a report brings: recorded in the report's transaction, a small payload with it."""

    reference: Reference
    parent: RefId | None = None
    inputs: tuple[RefId, ...] = ()
    payload: bytes | None = None
    lifetime: Lifetime | None = None


class Report(Struct, frozen=True, omit_defaults=True, kw_only=True, tag="report"):
    """What a worker says of a command it holds as `attempt`. `at`, step and activation are filled in by the owner."""

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
