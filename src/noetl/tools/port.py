"""The contract of a tool: `run` takes a rendered call and returns `Success`, `Failed` or `Suspend`.

A tool stops when its coroutine is cancelled: the processes and requests that it started are gone
when `run` returns. A playbook can route on a `Failed`; an exception means that the tool itself is
broken.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Literal, Protocol, TypeGuard, runtime_checkable

from msgspec import Struct, field

from noetl.model.errors import Failure
from noetl.model.events import ChildRequest, Items
from noetl.model.ids import DEFAULT_TENANT, ExecutionId, Micros, Tenant
from noetl.results.formats.tables import TableOptions
from noetl.template.model import MarkedValue

# Takes the stream (stdout or stderr) and a line. It is called in the order of the lines.
Log = Callable[[str, str], None]
# Takes a few words on how far the call is. Only the latest ones are shown; they are not stored.
Progress = Callable[[str], None]
# Takes the name of a secret and its provider.
Secret = Callable[[str, str | None], Awaitable[Any]]


def discard_log(stream: str, line: str) -> None:
    """Drop the line: the default `log` of a call."""


def discard_progress(progress: str) -> None:
    """Drop the progress: the default `progress` of a call."""


def keep_cut_text(text: str) -> str:
    """Return the text: the default `clean_cut` of a call."""
    return text


def hide_no_url() -> None:
    """Return None: errors may show the URL of the request."""


class CallIdentity(Struct, frozen=True):
    """Which call this is.

    `attempt` counts the tries of the retry policy, from 1. `lease` counts the leases of the
    command.
    """

    execution_id: ExecutionId
    step: str
    task: str
    attempt: int = 1
    index: int | None = None
    run: int = 1
    page: int = 0
    lease: int = 1


class PlaybookKey(Struct, frozen=True):
    """A playbook of a tenant, by the hash of its text. Two of them never share a process."""

    tenant: Tenant = DEFAULT_TENANT
    content: str = ""


NO_PLAYBOOK = PlaybookKey()  # of calls that no playbook makes


@runtime_checkable
class Rows(Protocol):
    """Rows that are stored elsewhere, and may not fit into memory."""

    def batches(self, size: int) -> AsyncIterator[list[Any]]:
        """Yield the rows in order, `size` at a time."""
        ...


@runtime_checkable
class Columnar(Protocol):
    """Rows that may be stored with their types."""

    async def reader(self) -> Any:
        """A `RowSetReader`, which the caller closes; None if the rows are JSON."""
        ...


class Rendering(Protocol):
    """Renders the fields that a tool declares `raw`, in the scope of the tool's task."""

    async def value(self, template: Any) -> Any: ...
    async def source(self, template: Any) -> Any:
        """Render a template, but open a stored row set: a `RowSetReader`, which the tool closes."""
        ...

    async def fetched(self, uri: str) -> Any:
        """The value or the reader of rows behind a URI, if this command may read it."""
        ...

    async def rows(self, template: Any) -> Any:
        """Render a template, but do not load stored rows: they are `Rows`, also in a map."""
        ...

    async def marked(self, template: str) -> tuple[str, list[MarkedValue]]: ...


class Call(Struct, frozen=True):
    """One rendered call of a tool.

    - `key` identifies the call for ever: it stays the same over lost leases and retries, and
      differs for each item, page and run.
    - `auth` has the values that the task's `auth` resolved to. No outcome may contain them.
    - `secret` resolves other secrets by name.
    - `tables` stores rows that are too many for a value.
    - `credential` resolves another `auth` in the config.
    - `columns`: the tool may return `ArrowRecords`, and members of `input` may be `SharedRecords`,
      which the tool closes. Only tools with `takes_columns` get such a call.
    - `playbook` is the playbook that makes the call.
    - `hidden_url` returns the URL as the playbook writes it, if errors must not show the rendered
      URL because it contains a value of a payload.
    - `first_url` is the URL that the task itself has, if this is the call of a page with another one.
      Answers may have chosen that one, so it gets no credential if its origin is another.
    - `clean_cut` takes a text of a value that the tool has cut at its end, and removes the beginning
      of a secret there. Texts of failures need no call: they are cleaned at both ends.
    """

    config: dict[str, Any]
    input: dict[str, Any]
    key: str
    identity: CallIdentity
    auth: Any = None
    timeout: Micros | None = None
    log: Log = discard_log
    progress: Progress = discard_progress
    rendering: Rendering | None = None
    secret: Secret | None = None
    tables: TableOptions = TableOptions()
    credential: Callable[[Any], Awaitable[Any]] | None = None
    columns: bool = False
    hidden_url: Callable[[], str | None] = hide_no_url
    playbook: PlaybookKey = NO_PLAYBOOK
    clean_cut: Callable[[str], str] = keep_cut_text
    first_url: str | None = None


class Success(Struct, frozen=True):
    """`value` is JSON, or an `EncodedTable`; `ArrowRecords` only if the call has `columns`.

    `facts` are small and become `output.http`, `output.pg`, `output.py`.
    """

    value: Any = None
    facts: dict[str, Any] = field(default_factory=dict)


class Failed(Struct, frozen=True):
    """`sample` are a few rows that show what is wrong.

    They are stored as a payload, and the failure refers to it: no event contains them.
    """

    failure: Failure
    facts: dict[str, Any] = field(default_factory=dict)
    sample: list[dict[str, Any]] | None = None


class Suspend(Struct, frozen=True):
    """The task waits without a worker, and resumes with the result of the wait."""

    reason: Literal["time", "signal", "approval", "child"]
    until: Micros | None = None
    delay: Micros | None = None
    signal: str | None = None
    child: ChildRequest | None = None
    timeout: Micros | None = None
    question: Any = None  # of an approval: what the playbook asks, as it is


Outcome = Success | Failed | Suspend


class Tool(Protocol):
    """A worker has one instance of each tool.

    A tool may also have the coroutines `start()` and `close()`, which the worker calls when it
    begins and ends. A tool from an entry point may have `config`, the pydantic model of its fields.
    """

    @property
    def kind(self) -> str: ...

    async def run(self, call: Call) -> Outcome: ...


# Called with the number of a call, its outcome, the seconds that it ran without the time that it
# waited, and how many calls of the same batch ran at the same time.
OutcomeListener = Callable[[int, "Success | Failed", float, int], None]


@runtime_checkable
class ManyTool(Tool, Protocol):
    """A tool that takes many calls at once, because dispatching one may cost more than running it.

    All calls share one `config`, which is fully rendered; only its raw fields have values.
    `playbook` is the playbook that makes the calls.
    `log` returns the log of the nth call. The tool asks for it only if the call writes something.
    The tool passes the outcome of every call to `listener` as soon as it has it.
    At most `at_once` calls run at the same time.
    With `stop`, the calls that have not begun when one fails are not made and have no outcome.
    When `run_many` is cancelled, it returns after all calls have ended.
    """

    async def run_many(
        self,
        config: dict[str, Any],
        inputs: Sequence[dict[str, Any]],
        log: Callable[[int], Log],
        listener: OutcomeListener,
        *,
        at_once: int = 1,
        stop: bool = False,
        playbook: PlaybookKey = NO_PLAYBOOK,
    ) -> None: ...


def is_many_tool(tool: Tool | None) -> TypeGuard[ManyTool]:
    """Whether the tool takes many calls at once. `isinstance` does the same, much slower."""
    return hasattr(tool, "run_many")


class Looped(Struct, frozen=True):
    """The result of a loop that a tool ran as a whole.

    `value` is an `EncodedTable` or `TableParts` with a row (index, status, error, ms, tries, result) for every
    item, in order. `shards` has the outcome of each part of the loop. `provenance` has the fields
    that the items of each part share.
    """

    value: Any
    shards: list[Items]
    provenance: list[dict[str, Any]] = []


ItemBatches = AsyncIterator[list[tuple[int, Any]]]  # items with their indexes, in order
PartListener = Callable[[int, Items], Awaitable[None]]  # called when a part of the loop has ended


@runtime_checkable
class LoopTool(Tool, Protocol):
    """A tool that runs all items of a loop outside the worker, many parts at the same time.

    `call.config` describes the work (`pipeline/loop/on_spark.py`). `items` are the rows of a
    `RowSetReader`, or batches of items. The tool reports every part once: while the loop runs if
    it learns of it then, and the rest at the end.
    """

    async def run_loop(
        self, call: Call, items: Any | ItemBatches, told: PartListener
    ) -> Looped | Failed: ...


def takes_columns(tool: Tool) -> bool:
    """Whether the tool can take rows in shared memory, and return rows as Arrow."""
    return bool(getattr(tool, "takes_columns", False))


def raw_fields(tool: Tool) -> frozenset[str]:
    """The fields that the pipeline does not render for the tool: its `raw`, or none."""
    raw: frozenset[str] = getattr(tool, "raw", frozenset())
    return raw
