"""The contract of a tool: `run` takes one rendered call and ends in a `Success`, a `Failed`, or a `Suspend`.

A tool stops when its coroutine is cancelled: whatever it started (a process, a request) is gone when `run` has returned. What a
playbook can route on is a `Failed`; an exception means that the tool itself is broken.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Literal, Protocol, runtime_checkable

from msgspec import Struct, field

from noetl.model.errors import Failure
from noetl.model.events import ChildRequest, Items
from noetl.model.ids import ExecutionId, Micros
from noetl.playbook.templates import Marked
from noetl.results.tables import Tables

Log = Callable[
    [str, str], None
]  # stream (stdout, stderr), line; called in the order they were written
Progress = Callable[
    [str], None
]  # a few words on how far it is; the last ones are seen by whoever looks, and kept nowhere
Secret = Callable[[str, str | None], Awaitable[Any]]  # name, provider


def silent(stream: str, line: str) -> None:
    """Logs nowhere."""


def unseen(progress: str) -> None:
    """Nobody looks."""


def nothing_hidden() -> None:
    """Errors may show the address that was asked."""


class CallIdentity(Struct, frozen=True):
    """Which call this is. `attempt` is the policy's try, from 1; lost leases do not count: those are `lease`."""

    execution_id: ExecutionId
    step: str
    task: str
    attempt: int = 1
    index: int | None = None
    run: int = 1
    page: int = 0
    lease: int = 1


@runtime_checkable
class Rows(Protocol):
    """Rows that are stored elsewhere, and may be more than memory holds."""

    def batches(self, size: int) -> AsyncIterator[list[Any]]:
        """So many at a time, in order."""
        ...


@runtime_checkable
class Columnar(Protocol):
    """Rows that may be stored with their types."""

    async def reader(self) -> Any:
        """A `rowsets.Reader`, which whoever asks closes; None: they are JSON."""
        ...


class Rendering(Protocol):
    """For fields that a tool declares `raw` and renders itself, in the scope of its task."""

    async def value(self, template: Any) -> Any: ...
    async def source(self, template: Any) -> Any:
        """Like `value`, but a stored row set stays where it is: a `rowsets.Reader`, which the tool closes."""
        ...

    async def fetched(self, uri: str) -> Any:
        """What an address leads to, if this command may know it: a value, or a reader of rows."""
        ...

    async def rows(self, template: Any) -> Any:
        """Like `value`, but rows that are stored stay where they are: `Rows`, also as a member of a map."""
        ...

    async def marked(self, template: str) -> tuple[str, list[Marked]]: ...


class Call(Struct, frozen=True):
    """`key` names this call for ever: the same over lost leases and tries, another for each item, page and run. `auth` is what
    the task's `auth` resolved to: its values, which must appear in no outcome. `secret` resolves others by name. `tables` takes
    rows that a value could not hold. `credential` is what another `auth` in the config stands for. `hidden_url` gives the address
    as the playbook writes it if errors must not show the one that is asked, because a value of a payload is in it."""

    config: dict[str, Any]
    input: dict[str, Any]
    key: str
    identity: CallIdentity
    auth: Any = None
    timeout: Micros | None = None
    log: Log = silent
    progress: Progress = unseen
    rendering: Rendering | None = None
    secret: Secret | None = None
    tables: Tables = Tables()
    credential: Callable[[Any], Awaitable[Any]] | None = None
    hidden_url: Callable[[], str | None] = nothing_hidden


class Success(Struct, frozen=True):
    """`value` is JSON, or a `Table`. `facts` are small and become `output.http`, `output.pg`, `output.py`."""

    value: Any = None
    facts: dict[str, Any] = field(default_factory=dict)


class Failed(Struct, frozen=True):
    """`sample` are a few rows that show what is wrong. They are stored, and the failure names where: they stand in no event."""

    failure: Failure
    facts: dict[str, Any] = field(default_factory=dict)
    sample: list[dict[str, Any]] | None = None


class Suspend(Struct, frozen=True):
    """The task waits without a worker; it goes on with what it waited for."""

    reason: Literal["time", "signal", "approval", "child"]
    until: Micros | None = None
    delay: Micros | None = None
    signal: str | None = None
    child: ChildRequest | None = None
    timeout: Micros | None = None


Outcome = Success | Failed | Suspend


class Tool(Protocol):
    """One per worker. It may also have `start()` and `close()`, coroutines called when the worker begins and ends, and `config`,
    the pydantic model of its fields, when it comes by entry point."""

    @property
    def kind(self) -> str: ...

    async def run(self, call: Call) -> Outcome: ...


class BatchOutcome(Struct, frozen=True):
    """Outcomes in the order of the inputs, None of a call that was not made; and how long the calls were worked on, without
    what they waited."""

    outcomes: "Sequence[Success | Failed | None]"
    seconds: float


@runtime_checkable
class ManyTool(Tool, Protocol):
    """A tool whose cheap calls are dearer to make than to run. `config` is the same for all and fully rendered; what is not raw
    in it is empty. `log` gives the log of the nth call, when it needs one. At most `at_once` of them run at any moment.
    `stop`: when one fails, those that have not begun are not made. Cancelled, none of the calls runs any more."""

    async def run_many(
        self,
        config: dict[str, Any],
        inputs: Sequence[dict[str, Any]],
        log: Callable[[int], Log],
        *,
        at_once: int = 1,
        stop: bool = False,
    ) -> BatchOutcome: ...


class Looped(Struct, frozen=True):
    """`value` has a row (index, status, error, ms, tries, result) for every item, in order: a `Table` or `Parts`. `shards` tell
    what the parts of the loop did, `provenance` what the items of each part share."""

    value: Any
    shards: list[Items]
    provenance: list[dict[str, Any]] = []


ItemBatches = AsyncIterator[list[tuple[int, Any]]]  # items with their indexes, in order
Told = Callable[[int, Items], Awaitable[None]]  # a part of the loop has ended


@runtime_checkable
class LoopTool(Tool, Protocol):
    """A tool that runs all items of a loop, many parts of it at once, elsewhere. `call.config` says what (`pipeline/spread.py`);
    `items` are a `rowsets.Reader`, whose rows they are, or come in batches. Every part is told of once, as far as that is known
    while it runs and the rest at the end."""

    async def run_loop(
        self, call: Call, items: Any | ItemBatches, told: Told
    ) -> Looped | Failed: ...


def raw_fields(tool: Tool) -> frozenset[str]:
    """Fields that are not rendered for the tool: its `raw`, when it has one."""
    raw: frozenset[str] = getattr(tool, "raw", frozenset())
    return raw
