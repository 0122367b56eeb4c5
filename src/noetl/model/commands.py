"""Commands: work issued to one worker. A command carries the names its templates use and where to go on, never a payload."""

from typing import Any

from msgspec import Struct

from noetl.model.envelope import Envelope
from noetl.model.errors import Failure
from noetl.model.events import Collection, CommandKind, Items, Recovered
from noetl.model.ids import DEFAULT_TENANT, ActivationId, CommandId, ExecutionId, Micros, Tenant
from noetl.model.reference import Reference

DEFAULT_POOL = "cpu"
USUAL_POOLS = (
    DEFAULT_POOL,
    "gpu",
    "spark",
    "qpu",
)  # what the one worker of a command on this machine takes
MAX_LEASES = 5  # leases lost before a command is dead
SUSPECT = 2  # leases lost from which on a command shares no worker with another such one; in the migrations too
MAX_FRAME_ROWS = 1_000_000  # that one claim of a cursor loop may give
LONGEST_HELD_DELAY: Micros = 5_000_000  # a try delayed longer holds no worker


class Scope(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The names a worker needs to render this step, as of the moment the command was issued."""

    workload: dict[str, Any] = {}
    workload_by_reference: bool = False  # it may hold values of a payload of the parent
    ctx: dict[str, Any] = {}
    state: dict[str, Any] | None = {}  # None: the playbook has another use for the name
    args: dict[str, Any] = {}
    results: dict[str, Envelope] = {}
    scratch: dict[str, Any] = {}
    run: int = 1
    path: str = ""
    version: int | None = None
    event: str = ""
    error: Failure | None = None  # of the execution, once a step has failed and nothing handled it
    failed_step: str | None = None
    own: Envelope | None = None
    status: str = ""
    outer: dict[str, Any] = {}


class Page(Struct, frozen=True, omit_defaults=True):
    """The last page that is stored; all pages are parts of the manifest `call_id(command, task, run)`."""

    number: int
    cursor: dict[str, Any] = {}
    result: Envelope | None = None


class Journal(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Where a new attempt of a command goes on. Folded from the journal events of the attempts before it."""

    goto: int = 0
    runs: dict[str, int] = {}
    results: dict[str, Envelope] = {}
    prev: Envelope | None = None
    last: Envelope | None = None
    tries: int = 0
    jumps: int = 0
    page: Page | None = None
    set: dict[str, Any] = {}
    resolved: Envelope | None = (
        None  # what the task at `goto` waited for: a signal's payload, a child's result
    )
    done: int = 0
    items: Items = Items()
    frame: Reference | None = None
    frame_size: int | None = None
    shards: tuple[int, ...] = ()  # partitions of a loop on Spark that have told of their end
    recovered: Recovered | None = None  # errors of tasks that rules let pass


class Command(Struct, frozen=True, omit_defaults=True, kw_only=True):
    command_id: CommandId
    execution_id: ExecutionId
    playbook: str
    step: str
    activation: ActivationId
    kind: CommandKind = "run"
    attempt: int = 1
    pool: str = DEFAULT_POOL
    priority: int = 0
    tenant: Tenant = DEFAULT_TENANT
    timeout: Micros | None = None
    scope: Scope = Scope()
    journal: Journal = Journal()
    # loops: items [first, first + count) of the collection, so many together; `items` are theirs when the server knows them
    first: int = 0
    count: int = 0
    together: int = 1
    size: int = 0
    collection: Collection | None = None
    items: tuple[Any, ...] = ()
    attempts: int = 0
    stop_on_failure: bool = False
    # evaluate and plan: the site names the expressions, in the step's plan
    site: str | None = None
    site_args: dict[str, Any] = {}
