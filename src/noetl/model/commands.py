"""Commands: work issued to one worker.

A command carries the names that its templates use and a journal, never a payload.
"""

from typing import Any

from msgspec import Struct

from noetl.model.envelope import Envelope
from noetl.model.errors import Failure
from noetl.model.events import Collection, CommandKind, Items, Recovered
from noetl.model.ids import DEFAULT_TENANT, ActivationId, CommandId, ExecutionId, Micros, Tenant
from noetl.model.reference import Reference

DEFAULT_POOL = "cpu"
# The pools of the single worker in a memory cluster (`noetl run --memory`, `noetl test`).
USUAL_POOLS = (DEFAULT_POOL, "gpu", "spark", "qpu")
MAX_LOST_LEASES = 5  # leases lost before a command is dead
# A command that has lost this many leases shares no worker with another such command. Migrations
# repeat the number.
SUSPECT_LOST_LEASES = 2
MAX_FRAME_ROWS = 1_000_000  # rows that one claim of a cursor loop may return
MAX_HELD_DELAY_MICROS: Micros = 5_000_000  # a retry with a longer delay does not hold a worker


class Scope(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The names that a worker needs to render this step, with the values at the time of issue."""

    workload: dict[str, Any] = {}
    workload_by_reference: bool = False  # it may hold values of a payload of the parent
    ctx: dict[str, Any] = {}
    state: dict[str, Any] | None = {}  # None: the playbook uses the name `state` for itself
    args: dict[str, Any] = {}
    results: dict[str, Envelope] = {}
    scratch: dict[str, Any] = {}
    run: int = 1
    path: str = ""
    version: int | None = None
    event: str = ""
    error: Failure | None = None  # the first unhandled failure of the execution
    failed_step: str | None = None
    own: Envelope | None = None
    status: str = ""
    outer: dict[str, Any] = {}


class Page(Struct, frozen=True, omit_defaults=True):
    """The last stored page. All pages are parts of the manifest `call_id(command, task, run)`."""

    number: int
    cursor: dict[str, Any] = {}
    result: Envelope | None = None


class Journal(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Where a new attempt of a command continues, folded from the journal events of earlier
    attempts."""

    goto: int = 0
    runs: dict[str, int] = {}
    results: dict[str, Envelope] = {}
    prev: Envelope | None = None
    last: Envelope | None = None
    tries: int = 0
    jumps: int = 0
    page: Page | None = None
    set: dict[str, Any] = {}
    # The result of the wait of the task at `goto`: the payload of a signal, the result of a child.
    resolved: Envelope | None = None
    done: int = 0
    items: Items = Items()
    frame: Reference | None = None
    frame_size: int | None = None
    shards: tuple[int, ...] = ()  # partitions of a loop on Spark that were reported as done
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
    # Loops: the items [first, first + count) of the collection, `together` of them at once. `items`
    # holds their values if the server knows them.
    first: int = 0
    count: int = 0
    together: int = 1
    size: int = 0
    collection: Collection | None = None
    items: tuple[Any, ...] = ()
    attempts: int = 0
    stop_on_failure: bool = False
    # Kinds `evaluate` and `plan`: the site of the expressions in the step's plan.
    site: str | None = None
    site_args: dict[str, Any] = {}
