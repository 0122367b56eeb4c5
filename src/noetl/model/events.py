"""The facts: one frozen struct per event type, one closed union. `docs/events.md` is generated from this file.

Every event has `at` (the owner's clock, never less than the execution's last) and a `key`, unique within its execution and
derived from what the event says; the database refuses a second event of the same key, so a fact is recorded once however
often it is reported. An event brings every datum that a later decision needs; payloads never, only envelopes.
"""

from typing import Any, ClassVar, Literal, Union

from msgspec import Struct
from msgspec.structs import replace

from noetl.model.envelope import Envelope, Selected
from noetl.model.errors import Failure
from noetl.model.ids import ActivationId, CommandId, ExecutionId, Micros, TimerId
from noetl.model.playbook_state import StateValue
from noetl.model.reference import Reference

Emitter = Literal["server", "worker"]
CommandKind = Literal["run", "chunk", "frame", "evaluate", "plan"]


class Base(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type"):
    emitter: ClassVar[Emitter] = "server"
    older: ClassVar[
        tuple[str, ...]
    ] = ()  # its names in the older documents, today's name too if they have it

    at: Micros = 0

    @property
    def key(self) -> str:
        raise NotImplementedError

    @property
    def type(self) -> str:
        return str(type(self).__struct_config__.tag)


# ---- the execution ----------------------------------------------------------------------


class Parent(Struct, frozen=True, omit_defaults=True):
    """Whose child an execution is. `call` names the one call that asked for it (command, task, run): it is the start key.
    `iter` is the iteration that asked."""

    execution_id: ExecutionId
    call: str
    iter: dict[str, Any] = {}


class StartAt(Struct, frozen=True, omit_defaults=True):
    """A step that an execution begins with, and the arguments it gets."""

    step: str
    args: dict[str, Any] = {}


class PlaybookInitialized(Base, frozen=True, tag="playbook.initialized"):
    """The execution exists: its playbook is pinned by content hash, its workload merged and stored."""

    older = ("playbook.execution.requested", "playbook.request.evaluated", "execution_start")

    execution_id: ExecutionId
    path: str
    playbook: str
    version: int | None = None
    start_key: str | None = None
    by: str | None = None
    parent: Parent | None = None
    depth: int = 0
    retry_of: ExecutionId | None = None
    from_step: str | None = (
        None  # of a rerun: the step of `retry_of` from which everything runs again
    )
    return_step: str | None = None
    start_at: tuple[StartAt, ...] = ()
    timeout: Micros | None = None
    pins: dict[str, int] = {}  # versions of the children that it calls, by path
    workload_by_reference: bool = (
        False  # its parent gave its input by reference: no event repeats texts of its workload
    )

    @property
    def key(self) -> str:
        return "start"


class WorkflowInitialized(Base, frozen=True, tag="workflow.initialized"):
    """The execution was admitted (`max_concurrent`) and its entry step is due."""

    older = ("workflow.started",)

    @property
    def key(self) -> str:
        return "admitted"


class LoopInherited(Struct, frozen=True, omit_defaults=True):
    """A loop of the execution that is retried, which failed or completed with failed items: only those run again."""

    collection: "Collection"
    manifest: Reference | None
    total: int
    failed: int
    skipped: int = 0
    partial: dict[
        str, Any
    ] = {}  # reductions of the items that do not run again: they stand before those that do
    args: dict[str, Any] = {}  # what the arc that led to it had given it
    gathered: str | None = None  # the manifest of those among them that are payloads


class StepInherited(Base, frozen=True, tag="step.inherited"):
    """A finished step of the execution that is retried: its result is taken over by reference, it does not run again."""

    step: str
    result: Envelope
    runs: int = 1
    loop: LoopInherited | None = None

    @property
    def key(self) -> str:
        return f"inherited:{self.step}"


class ArrivalsInherited(Base, frozen=True, tag="arrivals.inherited"):
    """Further steps that the execution begins with: those that do not fit into `playbook.initialized`."""

    start_at: tuple[StartAt, ...]
    part: int = 0

    @property
    def key(self) -> str:
        return f"inherited.arrivals:{self.part}"


class CtxInherited(Base, frozen=True, tag="ctx.inherited"):
    """Variables of the execution that is retried."""

    set: dict[str, Any]
    part: int = 0

    @property
    def key(self) -> str:
        return f"inherited.ctx:{self.part}"


class StateRead(Base, frozen=True, tag="state.read"):
    """Values of the playbook's state as this execution sees them. `inherited`: those of the execution that is retried, because
    steps that do not run again have used them."""

    values: dict[str, StateValue]  # in order of their names; each name is read once
    inherited: bool = False

    @property
    def key(self) -> str:
        return f"state.read:{next(iter(self.values), '')}"


class StateConflict(Base, frozen=True, tag="state.conflict"):
    """Somebody else has written a state value since this execution read or wrote it: its own writes of that name fail."""

    name: str
    expected: int  # the version that this execution knew
    version: int  # the version that was found
    by: str | None = None  # the execution or person that wrote it
    is_full: bool = False  # nobody wrote it: the playbook's path has as many names as it may have

    @property
    def key(self) -> str:
        return f"state.conflict:{self.name}"


class PlaybookPaused(Base, frozen=True, tag="playbook.paused"):
    """Reports, timers and signals are still recorded; what would be issued is held."""

    request: str
    by: str | None = None

    @property
    def key(self) -> str:
        return f"pause:{self.request}"


class PlaybookResumed(Base, frozen=True, tag="playbook.resumed"):
    """What was held is issued."""

    request: str
    by: str | None = None

    @property
    def key(self) -> str:
        return f"resume:{self.request}"


class ExecutionCancelling(Base, frozen=True, tag="execution.cancelling"):
    """Nothing more is issued; commands and children are being stopped. `error` is set when a failure is the reason."""

    reason: Literal["requested", "failed", "timeout", "parent"]
    by: str | None = None
    error: Failure | None = None
    step: str | None = None

    @property
    def key(self) -> str:
        return f"cancelling:{self.reason}"


class ExecutionCancelled(Base, frozen=True, tag="execution.cancelled"):
    """Terminal: cancelled on request, every command stopped."""

    older = ("workflow.finished", "playbook.processed", "execution_completed")

    reason: str = "requested"

    @property
    def key(self) -> str:
        return "terminal"


class PlaybookCompleted(Base, frozen=True, tag="playbook.completed"):
    """Terminal: nothing is live and no failure was left unhandled."""

    older = ("workflow.finished", "playbook.processed", "execution_completed")

    step: str | None = None
    result: Envelope | None = None

    @property
    def key(self) -> str:
        return "terminal"


class PlaybookFailed(Base, frozen=True, tag="playbook.failed"):
    """Terminal: `error` is the first causal failure, `step` where it happened."""

    older = ("workflow.finished", "playbook.processed", "execution_completed")

    error: Failure
    step: str | None = None

    @property
    def key(self) -> str:
        return "terminal"


class ExecutionQuarantined(Base, frozen=True, tag="execution.quarantined"):
    """Folding or deciding raised: the execution is set aside until it is released by hand; its shard goes on."""

    error: str
    cause: str

    @property
    def key(self) -> str:
        return f"quarantined:{self.cause}"


class ExecutionReleased(Base, frozen=True, tag="execution.released"):
    """A quarantined execution goes on."""

    request: str
    by: str | None = None

    @property
    def key(self) -> str:
        return f"released:{self.request}"


# ---- steps ------------------------------------------------------------------------------


class StepEnter(Base, frozen=True, tag="step.enter"):
    """An activation of a step begins: it consumes `joined` arrivals. `origins` are the steps whose arcs led here, `args` what
    those arcs carry."""

    older = ("step.started",)

    step: str
    activation: ActivationId
    run: int
    cause: str
    joined: int = 0
    origins: tuple[str, ...] = ()
    args: dict[str, Any] = {}

    @property
    def key(self) -> str:
        return f"step:{self.activation}:enter"


class StepSkipped(Base, frozen=True, tag="step.skipped"):
    """Admission said no: the router does not run; the branch ends, or goes on at `next`. `failed_origins` are
    failed steps whose error arcs led here: their failures stand unless another step handles them."""

    step: str
    activation: ActivationId
    rule: int
    next: str | None = None
    failed_origins: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        return f"step:{self.activation}:skipped"


class CallDone(Base, frozen=True, tag="call.done"):
    """The step's call has resolved. The envelope's context stands in the `command.completed` before it."""

    older = ("step.done",)

    step: str
    activation: ActivationId
    result: Envelope
    command_id: CommandId | None = None

    @property
    def key(self) -> str:
        return f"call:{self.activation}"


class CallError(Base, frozen=True, tag="call.error"):
    """The step's call has failed; arcs with a `when` may still handle it."""

    older = ("step.failed",)

    step: str
    activation: ActivationId
    result: Envelope
    command_id: CommandId | None = None

    @property
    def key(self) -> str:
        return f"call:{self.activation}"


class StepExit(Base, frozen=True, tag="step.exit"):
    """The activation's work is over; `set` holds what the step assigns (full names: ctx.x, step.y)."""

    older = ("step.finished", "result")

    step: str
    activation: ActivationId
    result: Envelope
    set: dict[str, Any] = {}

    @property
    def key(self) -> str:
        return f"step:{self.activation}:exit"


class Verdict(Struct, frozen=True, omit_defaults=True):
    """One arc: `taken`, `false`, `error`, or not `tried`; and the values its guard saw."""

    step: str
    verdict: Literal["taken", "false", "untried", "error"]
    saw: dict[str, Any] = {}


class Chosen(Struct, frozen=True, omit_defaults=True):
    """An arc that was taken: its number, the step it leads to, and the arguments it carries."""

    arc: int
    step: str
    args: dict[str, Any] = {}


class NextEvaluated(Base, frozen=True, tag="next.evaluated"):
    """The router's verdict on every arc, with what it saw, and what it chose. `error` when a guard failed; `failure` when it
    failed while the failure of the step was handled: both errors, that of the step first."""

    older = ("case.started", "case.evaluated", "next.evaluated")

    step: str
    activation: ActivationId
    event: str
    order: int = 0
    verdicts: tuple[Verdict, ...] = ()
    chosen: tuple[Chosen, ...] = ()
    set: dict[str, Any] = {}
    error: Failure | None = None
    failure: Failure | None = None
    recovered: bool = False  # the step failed, and an error arc was taken

    @property
    def key(self) -> str:
        return f"next:{self.activation}"


class ExpressionEvaluated(Base, frozen=True, tag="expression.evaluated"):
    """A worker evaluated what the server could not without opening data: `values` by expression number."""

    emitter = "worker"

    command_id: CommandId
    attempt: int
    step: str
    activation: ActivationId
    site: str
    values: tuple[Selected, ...] = ()
    worker: str | None = None
    plan: "Collection | None" = None
    error: Failure | None = None

    @property
    def key(self) -> str:
        return f"command:{self.command_id}:end"


# ---- waiting ----------------------------------------------------------------------------


class TimerFired(Base, frozen=True, tag="timer.fired"):
    """A timer written with an earlier decision is due by the database's clock."""

    timer: TimerId

    @property
    def key(self) -> str:
        return f"timer:{self.timer}"


class SignalReceived(Base, frozen=True, tag="signal.received"):
    """A signal from outside; kept in order per name until a `wait` consumes it."""

    name: str
    request: str
    payload: Any = None
    by: str | None = None

    @property
    def key(self) -> str:
        return f"signal:{self.request}"


class ChildStarted(Base, frozen=True, tag="child.started"):
    """The child that a `playbook` task asked for exists."""

    call: str
    child: ExecutionId

    @property
    def key(self) -> str:
        return f"child:{self.call}:started"


class ChildEnded(Base, frozen=True, tag="child.ended"):
    """A child ended: written to the parent's inbox with the child's terminal event."""

    call: str
    child: ExecutionId | None
    result: Envelope
    recovered: int = 0  # failures that the child handled

    @property
    def key(self) -> str:
        return f"child:{self.call}:ended"


# ---- commands ---------------------------------------------------------------------------


class CommandIssued(Base, frozen=True, tag="command.issued"):
    """Work for one worker; the queue row is written in the same transaction. A chunk says which items it covers."""

    older = ("command.issued", "loop.iteration.started")

    command_id: CommandId
    step: str
    activation: ActivationId
    kind: CommandKind
    pool: str
    first: int = 0
    count: int = 0
    together: int = 1
    attempts: int = 0  # tries that an item deferred by its retry policy has behind it
    site: str | None = None
    timer: TimerId | None = None

    @property
    def key(self) -> str:
        return f"command:{self.command_id}:issued"


class CommandClaimed(Base, frozen=True, tag="command.claimed"):
    """A worker holds the command. Recorded only when its tool still runs after a second, or after a reclaim."""

    emitter = "worker"

    command_id: CommandId
    attempt: int
    worker: str
    step: str = ""
    activation: ActivationId = ActivationId("")

    @property
    def key(self) -> str:
        return f"command:{self.command_id}:{self.attempt}:claimed"


class CommandStarted(Base, frozen=True, tag="command.started"):
    """The worker began. Recorded only when its tool still runs after a second, or after a reclaim."""

    emitter = "worker"

    command_id: CommandId
    attempt: int
    worker: str
    step: str = ""
    activation: ActivationId = ActivationId("")

    @property
    def key(self) -> str:
        return f"command:{self.command_id}:{self.attempt}:started"


class Deferred(Struct, frozen=True, omit_defaults=True):
    """An item that leaves its chunk and comes back later: its retry waits too long to hold a worker."""

    index: int
    attempts: int
    delay: Micros


class Recovered(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Errors of tasks that a rule let pass: how many, and the first of them. `by` is what the rule said to do."""

    task: str
    by: Literal["continue", "break", "jump"]
    code: str
    message: str
    count: int = 1

    def and_then(self, later: "Recovered | None") -> "Recovered":
        return self if later is None else replace(self, count=self.count + later.count)


class Items(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a chunk or frame did from item `first` on, summed up. `partial` are reductions of its ctx writes by sum, min and max;
    `gathered` is a payload with those by append, merge and last. Both are by name, and folded in item order.

    A frame's rows are numbered before anyone knows its place in the loop; `shift` is what their index lacks."""

    first: int = 0
    ok: int = 0
    failed: int = 0
    skipped: int = 0
    micros: int = 0
    claimed: int | None = None
    first_error: Failure | None = None
    first_failed: int | None = None
    deferred: tuple[Deferred, ...] = ()
    partial: dict[str, Any] = {}
    recovered: Recovered | None = None
    shift: int = 0
    gathered: Reference | None = None


class CommandCompleted(Base, frozen=True, tag="command.completed"):
    """An accepted report: the command's work is done and persisted. `set` are assignments made since the last journal entry."""

    emitter = "worker"
    older = (
        "tool.started",
        "action_started",
        "tool.finished",
        "action_completed",
        "loop.item",
        "loop.iteration.finished",
    )

    command_id: CommandId
    attempt: int
    result: Envelope
    step: str = ""
    activation: ActivationId = ActivationId("")
    worker: str = ""
    claimed_at: Micros = 0
    started_at: Micros = 0
    set: dict[str, Any] = {}
    items: Items | None = None
    sinks: tuple[str, ...] = ()
    recovered: Recovered | None = None  # of items, it stands in `items`

    @property
    def key(self) -> str:
        return f"command:{self.command_id}:end"


class CommandFailed(Base, frozen=True, tag="command.failed"):
    """An accepted report: the command's work ended in an error that its policies did not absorb."""

    emitter = "worker"
    older = (
        "tool.started",
        "action_started",
        "tool.finished",
        "action_error",
        "loop.item",
        "loop.iteration.finished",
    )

    command_id: CommandId
    attempt: int
    result: Envelope
    step: str = ""
    activation: ActivationId = ActivationId("")
    worker: str = ""
    claimed_at: Micros = 0
    started_at: Micros = 0
    set: dict[str, Any] = {}
    items: Items | None = None

    @property
    def key(self) -> str:
        return f"command:{self.command_id}:end"


class ChildRequest(Struct, frozen=True, omit_defaults=True, kw_only=True):
    path: str
    version: str | None = None
    workload: dict[str, Any] = {}
    reference: Reference | None = None
    return_step: str | None = None
    wait: bool = True
    iter: dict[str, Any] = {}  # as the child's templates see it: `iter.parent`
    pinned: int | None = None  # the latest version when this child was called for the first time


class CommandParked(Base, frozen=True, tag="command.parked"):
    """The command waits without a worker: for its next try, a moment, a signal, an approval, or a child."""

    emitter = "worker"

    command_id: CommandId
    attempt: int
    task: str
    reason: Literal["retry", "time", "signal", "approval", "child"]
    step: str = ""
    activation: ActivationId = ActivationId("")
    worker: str = ""
    until: Micros | None = None
    delay: Micros | None = None
    signal: str | None = None
    child: ChildRequest | None = None
    timeout: Micros | None = None
    tries: int = 0
    error: Failure | None = None

    @property
    def key(self) -> str:
        return f"command:{self.command_id}:{self.attempt}:parked"


class CommandReturned(Base, frozen=True, tag="command.returned"):
    """Its worker ends, or has had no room for it, and gives it back: it goes back to the queue as the next attempt. No lease
    was lost."""

    emitter = "worker"

    command_id: CommandId
    attempt: int
    step: str = ""
    activation: ActivationId = ActivationId("")
    worker: str = ""

    @property
    def key(self) -> str:
        return f"command:{self.command_id}:{self.attempt}:returned"


class CommandReclaimed(Base, frozen=True, tag="command.reclaimed"):
    """The lease was lost: the command goes back to the queue as `attempt`; the old one is refused from now on."""

    command_id: CommandId
    attempt: int
    worker: str | None = None
    step: str = ""
    activation: ActivationId = ActivationId("")

    @property
    def key(self) -> str:
        return f"command:{self.command_id}:{self.attempt}:reclaimed"


class CommandDead(Base, frozen=True, tag="command.dead"):
    """Too many leases were lost: the step fails with WORKER_LOST."""

    older = ("tool.finished", "action_error")

    command_id: CommandId
    attempt: int
    step: str = ""
    activation: ActivationId = ActivationId("")

    @property
    def key(self) -> str:
        return f"command:{self.command_id}:end"


class CommandCancelled(Base, frozen=True, tag="command.cancelled"):
    """The command was taken from the queue, or its worker stopped it, or lost it after being told to stop."""

    command_id: CommandId
    attempt: int
    step: str = ""
    activation: ActivationId = ActivationId("")

    @property
    def key(self) -> str:
        return f"command:{self.command_id}:end"


class TaskDone(Base, frozen=True, tag="task.done"):
    """Journal: one task of a pipeline has ended for good; a new attempt goes on at `goto`."""

    emitter = "worker"

    command_id: CommandId
    attempt: int
    task: str
    run: int
    goto: int
    result: Envelope
    step: str = ""
    activation: ActivationId = ActivationId("")
    jumps: int = 0
    transparent: bool = False
    set: dict[str, Any] = {}
    recovered: Recovered | None = None  # by this task and those before it

    @property
    def key(self) -> str:
        return f"task:{self.command_id}:{self.task}:{self.run}"


class CallPage(Base, frozen=True, tag="call.page"):
    """Journal: one page (or poll) of a paginated call is stored; a new attempt makes the next call from `cursor`."""

    emitter = "worker"

    command_id: CommandId
    attempt: int
    task: str
    run: int
    page: int
    result: Envelope
    cursor: dict[str, Any] = {}
    step: str = ""
    activation: ActivationId = ActivationId("")
    set: dict[str, Any] = {}

    @property
    def key(self) -> str:
        return f"page:{self.command_id}:{self.task}:{self.run}:{self.page}"


class RetryStarted(Base, frozen=True, tag="retry.started"):
    """Journal: a try failed and its policy tries again, so that tries are counted over a lost lease."""

    emitter = "worker"
    older = ("retry.started", "retry.processed")

    command_id: CommandId
    attempt: int
    task: str
    run: int
    tries: int
    error: Failure | None
    page: int = 0  # tries are counted anew for each page
    delay: Micros = 0
    step: str = ""
    activation: ActivationId = ActivationId("")
    set: dict[str, Any] = {}

    @property
    def key(self) -> str:
        return f"retry:{self.command_id}:{self.task}:{self.run}:{self.page}:{self.tries}"


class CommandProgress(Base, frozen=True, tag="command.progress"):
    """Journal of a chunk, at most once a second: items before index `done` are finished. `items` and `result` cover those
    finished since the entry before it; the final report covers the rest."""

    emitter = "worker"

    command_id: CommandId
    attempt: int
    done: int
    items: Items
    result: Envelope
    step: str = ""
    activation: ActivationId = ActivationId("")

    @property
    def key(self) -> str:
        return f"progress:{self.command_id}:{self.done}"


class FrameClaimed(Base, frozen=True, tag="frame.claimed"):
    """Journal of a cursor loop: the claimed rows are stored before the first of them is worked on."""

    emitter = "worker"

    command_id: CommandId
    attempt: int
    size: int
    reference: Reference | None
    step: str = ""
    activation: ActivationId = ActivationId("")

    @property
    def key(self) -> str:
        return f"frame:{self.command_id}"


class SinkProcessed(Base, frozen=True, tag="sink.processed"):
    """A storage task has stored what it was given."""

    older = ("sink.started", "sink.processed")

    step: str
    activation: ActivationId
    command_id: CommandId
    task: str
    run: int = 1

    @property
    def key(self) -> str:
        return f"sink:{self.command_id}:{self.task}:{self.run}"


# ---- loops ------------------------------------------------------------------------------


class Collection(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a loop runs over: a workload expression, a stored list, a cursor, failed items, or items that the server itself has
    computed from literals and scalars (`inline`). A list of a payload is never inline, whatever its size."""

    kind: Literal["inline", "workload", "reference", "cursor", "failed"]
    size: int = 0
    total: int | None = None  # of failed items: how many there are with those that are well
    skipped: int = 0  # so many of those were passed over
    items: tuple[Any, ...] = ()
    reference: Reference | None = None
    manifest: Reference | None = None


class LoopStarted(Base, frozen=True, tag="loop.started"):
    """A loop's epoch begins: its size and collection are facts before the first item runs. The activation is the epoch."""

    older = ("loop.started", "loop_started")

    step: str
    activation: ActivationId
    mode: Literal["sequential", "parallel", "cursor", "spark"]
    collection: Collection
    window: int
    chunk: int = 0
    frame: int = 0
    max_failed: int | None = 0
    single: bool = False
    reduce: dict[str, str] = {}
    timer: TimerId | None = None

    @property
    def key(self) -> str:
        return f"loop:{self.activation}:started"


class LoopShardDone(Base, frozen=True, tag="loop.shard.done"):
    """One partition of a loop on Spark is finished."""

    emitter = "worker"

    command_id: CommandId
    attempt: int
    shard: int
    items: Items
    step: str = ""
    activation: ActivationId = ActivationId("")

    @property
    def key(self) -> str:
        return f"shard:{self.command_id}:{self.shard}"


class LoopFaninCompleted(Base, frozen=True, tag="loop.fanin.completed"):
    """Every partition of a loop on Spark has been counted."""

    step: str
    activation: ActivationId
    shards: int

    @property
    def key(self) -> str:
        return f"loop:{self.activation}:fanin"


class Stats(Struct, frozen=True):
    """How many items a loop had, and how they ended."""

    total: int = 0
    ok: int = 0
    failed: int = 0
    skipped: int = 0


class LoopDone(Base, frozen=True, tag="loop.done"):
    """The epoch is closed, once; `stats` add up. Its result is a manifest: one entry per item, in order."""

    older = ("loop.finished", "loop_completed")

    step: str
    activation: ActivationId
    stats: Stats
    result: Envelope
    set: dict[str, Any] = {}
    recovered: int = 0  # failed items that the failure policy of the loop let pass

    @property
    def key(self) -> str:
        return f"loop:{self.activation}:done"


Terminal = PlaybookCompleted | PlaybookFailed | ExecutionCancelled
Ended = CommandCompleted | CommandFailed | CommandDead | CommandCancelled | ExpressionEvaluated
# A worker lets go of its command with these.
Ending = (
    CommandCompleted
    | CommandFailed
    | CommandParked
    | CommandReturned
    | CommandCancelled
    | ExpressionEvaluated
)
Reported = Union[
    CommandClaimed,
    CommandStarted,
    CommandCompleted,
    CommandFailed,
    CommandParked,
    CommandReturned,
    CommandCancelled,
    TaskDone,
    CallPage,
    RetryStarted,
    CommandProgress,
    FrameClaimed,
    LoopShardDone,
    ExpressionEvaluated,
]
Event = Union[
    PlaybookInitialized,
    WorkflowInitialized,
    StepInherited,
    ArrivalsInherited,
    CtxInherited,
    StateRead,
    StateConflict,
    PlaybookPaused,
    PlaybookResumed,
    ExecutionCancelling,
    ExecutionCancelled,
    PlaybookCompleted,
    PlaybookFailed,
    ExecutionQuarantined,
    ExecutionReleased,
    StepEnter,
    StepSkipped,
    CallDone,
    CallError,
    StepExit,
    NextEvaluated,
    ExpressionEvaluated,
    TimerFired,
    SignalReceived,
    ChildStarted,
    ChildEnded,
    CommandIssued,
    CommandClaimed,
    CommandStarted,
    CommandCompleted,
    CommandFailed,
    CommandParked,
    CommandReturned,
    CommandReclaimed,
    CommandDead,
    CommandCancelled,
    TaskDone,
    CallPage,
    RetryStarted,
    CommandProgress,
    FrameClaimed,
    SinkProcessed,
    LoopStarted,
    LoopShardDone,
    LoopFaninCompleted,
    LoopDone,
]
