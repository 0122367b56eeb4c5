"""The folded state of one execution: everything a decision needs, nothing that grows with the data.

The state keeps live things: activations that have not routed, commands that have not ended,
arrivals held at joins, signals that no `wait` has consumed. Of ended things it keeps one envelope
per step, counters, and a hash of the outcome. No decision depends on the order of a map's keys;
`order` and `arrival` give the order.
"""

from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec
from msgspec import Struct

from noetl.model.commands import Journal
from noetl.model.envelope import Envelope, Selected
from noetl.model.errors import Failure
from noetl.model.events import (
    ChildRequest,
    Collection,
    CommandKind,
    LoopInherited,
    Parent,
    StartAt,
    Stats,
    Verdict,
)
from noetl.model.failure_kinds import FailureKind
from noetl.model.ids import (
    DEFAULT_TENANT,
    ActivationId,
    CommandId,
    ExecutionId,
    Micros,
    Tenant,
    TimerId,
)
from noetl.playbook.plan import Plan

Status = Literal["new", "pending", "running", "cancelling", "completed", "failed", "cancelled"]
TERMINAL_STATUSES: frozenset[str] = frozenset({"completed", "failed", "cancelled"})

# What an activation waits for: its admission, its collection, its call, its loop, its assignments
# (`set`) or its router (`when`).
Phase = Literal["admit", "plan", "call", "loop", "set", "when"]


@dataclass(frozen=True, slots=True)
class ExecutionLimits:
    activations: int = 1_000_000
    depth: int = 32
    signals: int = 1_000


@dataclass(frozen=True, slots=True)
class PinnedPlaybook:
    """What never changes in an execution: the playbook, pinned by its hash, and the workload."""

    execution_id: ExecutionId
    plan: Plan
    workload: dict[str, Any]
    tenant: Tenant = DEFAULT_TENANT
    limits: ExecutionLimits = ExecutionLimits()
    # A cache by step: the items of loops over the workload, which are evaluated once.
    collections: dict[str, list[Any]] = field(default_factory=dict, compare=False)


class Arrival(Struct, frozen=True, omit_defaults=True):
    """An arrival at a step. The step has not run for it yet."""

    cause: str
    origin: str | None = None
    order: tuple[int, int] = (0, 0)  # document order of the arc: step, arc
    arrival: int = 0
    args: dict[str, Any] = {}


class Segment(Struct, frozen=True):
    """The reductions of the items [low, high), folded in item order."""

    low: int
    high: int
    partial: dict[str, Any]


class LoopState(Struct, frozen=True, omit_defaults=True, kw_only=True):
    mode: str
    collection: Collection
    window: int
    chunk: int
    frame: int
    max_failed: int | None
    single: bool
    reduce: dict[str, str] = {}
    next: int = 0  # the first index that no command covers yet
    frames: int = 0  # frames issued
    drained: bool = False  # a claim returned no rows
    live: int = 0  # commands that have not ended
    running: int = 0  # items that may run at once in the live commands
    ok: int = 0
    failed: int = 0
    skipped: int = 0
    claimed: int = 0
    micros: int = 0
    timed: int = 0
    stopping: bool = False
    broken: Failure | None = None  # a failure that no policy covers: of a claim or a Spark job
    first_error: Failure | None = None
    first_failed: int | None = None
    deferred: tuple[tuple[int, int, Micros], ...] = ()  # (index, attempts, delay) to issue again
    segments: tuple[Segment, ...] = ()
    gathered: bool = False  # some items wrote to a reducer with a value by reference
    shards: int = 0  # Spark partitions that have ended
    ahead: int = 0  # items in them while the command has not ended: shown, not counted
    kinds: tuple[FailureKind, ...] = ()  # of the items that failed

    @property
    def size(self) -> int:
        if self.mode == "cursor":
            return self.claimed
        return self.collection.size


class Activation(Struct, frozen=True, omit_defaults=True, kw_only=True):
    id: ActivationId
    step: str
    run: int
    cause: str
    phase: Phase = "admit"
    origins: tuple[str, ...] = ()
    args: dict[str, Any] = {}
    scratch: dict[str, Any] = {}
    entered_at: Micros = 0
    order: int = 0
    outcome: Envelope | None = None
    event: str = ""  # `event` in its router: call.done, call.error, loop.done
    loop: LoopState | None = None
    timer: TimerId | None = None
    values: dict[str, tuple[Selected, ...]] = {}  # by site: values that a worker evaluated
    planned: Collection | None = None
    broken: Failure | None = None  # why a worker could not evaluate an expression
    stopped: bool = False  # its command is being stopped: it timed out, or `unwritten` is set
    unwritten: Failure | None = None  # why a write of state was refused: the step fails with it
    pool: str = ""  # the pool of its commands, once it has issued one
    unclaimed: bool = False  # it timed out before a worker took one of its commands


class ParkedCommand(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a command waits for without a worker. `ready`: the wait ended while the execution was
    paused."""

    reason: str
    task: str
    signal: str | None = None
    call: str | None = None
    request: ChildRequest | None = None
    child: ExecutionId | None = None
    timer: TimerId | None = None
    timeout: TimerId | None = None
    ready: bool = False
    until: Micros | None = None  # when its timer is due
    question: dict[str, Any] = {}  # of an approval: what is asked


class OpenCommand(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A command that has not ended."""

    id: CommandId
    activation: ActivationId
    step: str
    kind: CommandKind
    attempt: int = 1
    lost: int = 0
    first: int = 0
    count: int = 0
    together: int = 1
    attempts: int = 0
    site: str | None = None
    place: int | None = None  # of a frame: the position of its first row in the loop
    journal: Journal = Journal()
    parked: ParkedCommand | None = None
    resolved_by: str | None = None  # key of the event that ended its last wait
    worker: str | None = None
    order: int = 0

    @property
    def shift(self) -> int:
        """What to add to a position counted by a frame's worker to get the loop's position."""
        if self.place is None:
            return 0
        return self.place - self.first


class Record(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The last ended activation of a step, and why the step ran or did not run."""

    runs: int = 0
    status: Literal["none", "ok", "error", "skipped", "cancelled", "inherited"] = "none"
    result: Envelope | None = None
    origins: tuple[str, ...] = ()
    event: str = ""
    verdicts: tuple[Verdict, ...] = ()
    rule: int | None = None
    skipped_to: str | None = None  # the next step that the admit rule named, if it was skipped
    stats: Stats | None = None
    loop: LoopInherited | None = None
    order: int = 0
    args: dict[str, Any] = {}  # arguments of its last activation
    entered_at: Micros | None = None  # when its last activation began
    ended_at: Micros | None = None
    kinds: tuple[FailureKind, ...] = ()  # of a loop: of its items that failed


class TimerUse(Struct, frozen=True, omit_defaults=True):
    purpose: Literal["execution", "step", "wait", "wait.timeout"]
    subject: str


class ChildCall(Struct, frozen=True, omit_defaults=True):
    """A child that a command waits for. The entry stays until the child has ended, also if its
    command was stopped."""

    command: CommandId
    child: ExecutionId | None = None  # known once it has started


class Unfinished(Struct, frozen=True, omit_defaults=True):
    """A step at which a retry of this execution begins."""

    step: str
    args: dict[str, Any] = {}


class Recovery(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Failures of one step that were handled in one way: their count, and the first failure."""

    step: str
    by: str  # such as "arc to repair", "rule: continue", "failure policy of the loop"
    code: str
    message: str
    task: str | None = None
    count: int = 1


class KnownState(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A value of the playbook's state, as this execution has read and written it."""

    value: Any = None
    version: int = 0
    unset: bool = False
    read: int = 0  # the version that was read
    writes: int = 0
    conflict: int | None = None  # a later version, written by another execution or a person
    conflict_by: str | None = None
    is_full: bool = False  # a new name cannot be written: the path has the maximal number of names


class Execution(Struct, frozen=True, omit_defaults=True, kw_only=True):
    execution_id: ExecutionId
    status: Status = "new"
    paused: bool = False
    quarantined: str | None = None
    path: str = ""
    version: int | None = None
    playbook: str = ""
    by: str | None = None
    parent: Parent | None = None
    depth: int = 0
    retry_of: ExecutionId | None = None
    from_step: str | None = None  # this execution reruns `retry_of` from this step
    return_step: str | None = None
    start_at: tuple[StartAt, ...] = ()
    pins: dict[str, int] = {}  # by path: versions of the children that it calls
    workload_by_reference: bool = False
    started_at: Micros = 0
    ended_at: Micros | None = None
    last_at: Micros = 0
    ctx: dict[str, Any] = {}
    playbook_state: dict[str, KnownState] = {}
    steps: dict[str, Record] = {}
    activations: dict[ActivationId, Activation] = {}
    running: dict[str, int] = {}  # by step: the number of live activations
    commands: dict[CommandId, OpenCommand] = {}
    tokens: dict[str, tuple[Arrival, ...]] = {}
    timers: dict[TimerId, TimerUse] = {}
    signals: dict[str, tuple[Any, ...]] = {}
    waiting_signals: int = 0
    calls: dict[str, ChildCall] = {}  # by call: requested children that have not ended
    failure: Failure | None = None
    failed_step: str | None = None
    reason: str | None = None  # why it is being cancelled
    finished: str | None = None  # the outcome, fixed before the final step runs
    final_done: bool = False
    last_step: str | None = None
    unfinished: tuple[Unfinished, ...] = ()
    activated: int = 0
    issued: int = 0
    events: int = 0
    outcome: int = 0
    recovered: int = 0  # failures that an error arc, a rule or a loop's failure policy handled
    recoveries: tuple[Recovery, ...] = ()  # the first MAX_RECOVERIES kinds of recovered failures

    @property
    def terminal(self) -> bool:
        return self.status in TERMINAL_STATUSES


_encoder = msgspec.json.Encoder()  # keeps the order of keys: a template may iterate over ctx
_decoder: msgspec.json.Decoder[Execution] = msgspec.json.Decoder(Execution)


def make_empty_execution(execution_id: str) -> Execution:
    return Execution(execution_id=ExecutionId(execution_id))


def encode_execution(state: Execution) -> bytes:
    return _encoder.encode(state)


def decode_execution(data: bytes) -> Execution:
    return _decoder.decode(data)
