"""The events: one frozen struct per type, one closed union. They generate `docs/events.md`.

Every event has `at`, read from the owner's clock and never earlier than the last event of the
execution, and a `key`, derived from the event and unique within its execution. A fact that is
reported twice is recorded once: the state of an execution recognises most repeats, and the database
refuses a second event with the same key for those that it does not remember (`KeyedEvent`). Events
carry all data that later decisions need: envelopes, never payloads.
"""

from typing import Any, ClassVar, Literal, Union, get_args

from msgspec import Struct
from msgspec.structs import replace

from noetl.model.envelope import Envelope, Selected
from noetl.model.errors import Failure
from noetl.model.failure_kinds import FailureKind
from noetl.model.ids import ActivationId, CommandId, ExecutionId, Micros, TimerId
from noetl.model.playbook_state import StateValue
from noetl.model.reference import Reference

Emitter = Literal["server", "worker"]
CommandKind = Literal["run", "chunk", "frame", "evaluate", "plan"]


class Base(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type"):
    emitter: ClassVar[Emitter] = "server"
    older: ClassVar[tuple[str, ...]] = ()  # its names in the older documents

    at: Micros = 0

    @property
    def key(self) -> str:
        raise NotImplementedError

    @property
    def type(self) -> str:
        return str(type(self).__struct_config__.tag)


# ---- the execution ----------------------------------------------------------------------


class Parent(Struct, frozen=True, omit_defaults=True):
    """The parent of an execution. `call` is the call that asked for the child (command, task, run)
    and the child's start key. `iter` is the iteration that asked."""

    execution_id: ExecutionId
    call: str
    iter: dict[str, Any] = {}


class StartAt(Struct, frozen=True, omit_defaults=True):
    """A step that an execution begins with, and its arguments."""

    step: str
    args: dict[str, Any] = {}


class PlaybookInitialized(Base, frozen=True, tag="playbook.initialized"):
    """The execution exists. Its playbook is pinned by content hash; its workload is merged and
    stored."""

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
    from_step: str | None = None  # of a rerun: the step of `retry_of` that it runs again from
    return_step: str | None = None
    start_at: tuple[StartAt, ...] = ()
    timeout: Micros | None = None
    pins: dict[str, int] = {}  # by path: versions of the children that it calls
    # The parent gave the input by reference: no event repeats texts of the workload.
    workload_by_reference: bool = False

    @property
    def key(self) -> str:
        return "start"


class WorkflowInitialized(Base, frozen=True, tag="workflow.initialized"):
    """The execution was admitted (`max_concurrent`); its first step can begin."""

    older = ("workflow.started",)

    @property
    def key(self) -> str:
        return "admitted"


class LoopInherited(Struct, frozen=True, omit_defaults=True):
    """A loop with failed items of the execution that is retried. Only the failed items run
    again; with `only`, those of them."""

    collection: "Collection"
    manifest: Reference | None
    total: int
    failed: int
    skipped: int = 0
    partial: dict[str, Any] = {}  # reductions of the items that do not run again; they come first
    args: dict[str, Any] = {}  # the arguments of its activation
    gathered: str | None = None  # the manifest of those reductions that are payloads
    only: tuple[int, ...] = ()  # indexes of the failed items that run again; empty: all of them


class StepInherited(Base, frozen=True, tag="step.inherited"):
    """The execution inherits the result of a finished step, by reference, from the one that it
    retries. The step does not run again."""

    step: str
    result: Envelope
    runs: int = 1
    loop: LoopInherited | None = None

    @property
    def key(self) -> str:
        return f"inherited:{self.step}"


class ArrivalsInherited(Base, frozen=True, tag="arrivals.inherited"):
    """More steps that the execution begins with, if they do not all fit into
    `playbook.initialized`."""

    start_at: tuple[StartAt, ...]
    part: int = 0

    @property
    def key(self) -> str:
        return f"inherited.arrivals:{self.part}"


class CtxInherited(Base, frozen=True, tag="ctx.inherited"):
    """The execution inherits variables from the one that it retries."""

    set: dict[str, Any]
    part: int = 0

    @property
    def key(self) -> str:
        return f"inherited.ctx:{self.part}"


class StateRead(Base, frozen=True, tag="state.read"):
    """Values of the playbook's state as this execution sees them. `inherited`: values from the
    retried execution, because steps that do not run again have used them."""

    values: dict[str, StateValue]  # in order of their names; each name is read once
    inherited: bool = False

    @property
    def key(self) -> str:
        return f"state.read:{next(iter(self.values), '')}"


class StateConflict(Base, frozen=True, tag="state.conflict"):
    """Another execution or a person has written a state value since this execution read or wrote
    it. Later writes of that name by this execution fail."""

    name: str
    expected: int  # the version that this execution knew
    version: int  # the version that was found
    by: str | None = None  # the execution or person that wrote it
    is_full: bool = False  # there was no write: the playbook's path has the maximal number of names

    @property
    def key(self) -> str:
        return f"state.conflict:{self.name}"


class PlaybookPaused(Base, frozen=True, tag="playbook.paused"):
    """The execution issues no commands. Reports, timers and signals are still recorded."""

    request: str
    by: str | None = None

    @property
    def key(self) -> str:
        return f"pause:{self.request}"


class PlaybookResumed(Base, frozen=True, tag="playbook.resumed"):
    """The execution issues the commands that were held back."""

    request: str
    by: str | None = None

    @property
    def key(self) -> str:
        return f"resume:{self.request}"


class ExecutionCancelling(Base, frozen=True, tag="execution.cancelling"):
    """The execution issues nothing more and stops its commands and children. `error` is set if a
    failure is the reason."""

    reason: Literal["requested", "failed", "timeout", "parent"]
    by: str | None = None
    error: Failure | None = None
    step: str | None = None

    @property
    def key(self) -> str:
        return f"cancelling:{self.reason}"


class ExecutionCancelled(Base, frozen=True, tag="execution.cancelled"):
    """Terminal: the execution was cancelled on request, and all commands have stopped."""

    older = ("workflow.finished", "playbook.processed", "execution_completed")

    reason: str = "requested"

    @property
    def key(self) -> str:
        return "terminal"


class PlaybookCompleted(Base, frozen=True, tag="playbook.completed"):
    """Terminal: nothing is live, and every failure was handled."""

    older = ("workflow.finished", "playbook.processed", "execution_completed")

    step: str | None = None
    result: Envelope | None = None

    @property
    def key(self) -> str:
        return "terminal"


class PlaybookFailed(Base, frozen=True, tag="playbook.failed"):
    """Terminal: `error` is the first unhandled failure, `step` is where it happened."""

    older = ("workflow.finished", "playbook.processed", "execution_completed")

    error: Failure
    step: str | None = None

    @property
    def key(self) -> str:
        return "terminal"


class ExecutionQuarantined(Base, frozen=True, tag="execution.quarantined"):
    """Folding or deciding raised an exception. The execution stops until a person releases it; its
    shard continues."""

    error: str
    cause: str

    @property
    def key(self) -> str:
        return f"quarantined:{self.cause}"


class ExecutionReleased(Base, frozen=True, tag="execution.released"):
    """A quarantined execution continues."""

    request: str
    by: str | None = None

    @property
    def key(self) -> str:
        return f"released:{self.request}"


# ---- steps ------------------------------------------------------------------------------


class StepEnter(Base, frozen=True, tag="step.enter"):
    """An activation of a step begins and consumes `joined` arrivals. `origins` are the steps with
    arcs that led here; `args` are the arguments of those arcs."""

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
    """An admit rule refused the step. Its router does not run; the branch ends or continues at
    `next`. `failed_origins` are failed steps with error arcs that led here; their failures are
    unhandled unless another step handles them."""

    step: str
    activation: ActivationId
    rule: int
    next: str | None = None
    failed_origins: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        return f"step:{self.activation}:skipped"


class CallDone(Base, frozen=True, tag="call.done"):
    """The step's call has succeeded. The `command.completed` before it has the envelope's
    context."""

    older = ("step.done",)

    step: str
    activation: ActivationId
    result: Envelope
    command_id: CommandId | None = None

    @property
    def key(self) -> str:
        return f"call:{self.activation}"


class CallError(Base, frozen=True, tag="call.error"):
    """The step's call has failed. Arcs with a `when` may still handle the failure."""

    older = ("step.failed",)

    step: str
    activation: ActivationId
    result: Envelope
    command_id: CommandId | None = None

    @property
    def key(self) -> str:
        return f"call:{self.activation}"


class StepExit(Base, frozen=True, tag="step.exit"):
    """The work of the activation is over. `set` holds the assignments of the step, by full name
    (ctx.x, step.y)."""

    older = ("step.finished", "result")

    step: str
    activation: ActivationId
    result: Envelope
    set: dict[str, Any] = {}

    @property
    def key(self) -> str:
        return f"step:{self.activation}:exit"


class Verdict(Struct, frozen=True, omit_defaults=True):
    """The verdict on one arc, and the values that its guard used."""

    step: str
    verdict: Literal["taken", "false", "untried", "error"]
    saw: dict[str, Any] = {}


class Chosen(Struct, frozen=True, omit_defaults=True):
    """A taken arc: its number, its target step, and its arguments."""

    arc: int
    step: str
    args: dict[str, Any] = {}


class NextEvaluated(Base, frozen=True, tag="next.evaluated"):
    """The router's verdict on every arc, and the arcs that it chose. `error` is set if a guard
    failed. `failure` is set if the step had failed before: it joins both errors, the step's
    first."""

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
    """A worker evaluated expressions that need data. `values` are in the order of the
    expressions."""

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
    """A timer of an earlier decision is due, by the clock of the database."""

    timer: TimerId

    @property
    def key(self) -> str:
        return f"timer:{self.timer}"


class SignalReceived(Base, frozen=True, tag="signal.received"):
    """A signal from outside. It is kept, in order per name, until a `wait` consumes it."""

    name: str
    request: str
    payload: Any = None
    by: str | None = None

    @property
    def key(self) -> str:
        return f"signal:{self.request}"


class ChildStarted(Base, frozen=True, tag="child.started"):
    """The child of a `playbook` task exists."""

    call: str
    child: ExecutionId

    @property
    def key(self) -> str:
        return f"child:{self.call}:started"


class ChildEnded(Base, frozen=True, tag="child.ended"):
    """A child has ended. The notice is written together with the child's terminal event."""

    call: str
    child: ExecutionId | None
    result: Envelope
    recovered: int = 0  # failures that the child handled

    @property
    def key(self) -> str:
        return f"child:{self.call}:ended"


# ---- commands ---------------------------------------------------------------------------


class CommandIssued(Base, frozen=True, tag="command.issued"):
    """Work for one worker was issued; its queue row is written in the same transaction. A chunk
    covers the items [first, first + count). With `repeats`, they are counted among the failed items
    that run again; `indexes` are the lowest and the highest index of them, if they were chosen."""

    older = ("command.issued", "loop.iteration.started")

    command_id: CommandId
    step: str
    activation: ActivationId
    kind: CommandKind
    pool: str
    first: int = 0
    count: int = 0
    together: int = 1
    attempts: int = 0  # earlier tries of an item that its retry policy has deferred
    site: str | None = None
    timer: TimerId | None = None
    repeats: bool = False
    indexes: tuple[int, int] | None = None

    @property
    def key(self) -> str:
        return f"command:{self.command_id}:issued"


class CommandClaimed(Base, frozen=True, tag="command.claimed"):
    """A worker holds the command. Recorded only if its tool runs longer than a second, or after a
    reclaim."""

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
    """The worker began. Recorded only if its tool runs longer than a second, or after a reclaim."""

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
    """An item that leaves its chunk and is issued again later, because its retry has a long
    delay."""

    index: int
    attempts: int
    delay: Micros


class Recovered(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Errors of tasks that a rule let pass: their count, and the first error. `by` is the action of
    the rule."""

    task: str
    by: Literal["continue", "break", "jump"]
    code: str
    message: str
    count: int = 1

    def add_later_errors(self, later: "Recovered | None") -> "Recovered":
        """Count the later errors too."""
        if later is None:
            return self
        return replace(self, count=self.count + later.count)


class Items(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The counts of a chunk or frame from item `first` on. `partial` holds reductions of its ctx
    writes by sum, min and max; `gathered` is a payload with those by append, merge and last. Both
    are by name, and folded in item order.

    The rows of a frame are numbered before its place in the loop is known; `shift` is what to add
    to their numbers. Of failed items that run again, `first` counts among these; `indexes` are the
    lowest and the highest index of them in the loop."""

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
    kinds: tuple[FailureKind, ...] = ()  # of its failures
    indexes: tuple[int, int] | None = None


class CommandCompleted(Base, frozen=True, tag="command.completed"):
    """The command's work is done and its results are stored. `set` holds the assignments since the
    last journal entry."""

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
    recovered: Recovered | None = None  # not of items: theirs is in `items`

    @property
    def key(self) -> str:
        return f"command:{self.command_id}:end"


class CommandFailed(Base, frozen=True, tag="command.failed"):
    """The command's work ended in an error that its policies did not handle."""

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
    """A child execution that a task asks for. A large workload, or one with texts of a payload, goes by `reference`."""

    path: str
    version: str | None = None
    workload: dict[str, Any] = {}
    reference: Reference | None = None
    return_step: str | None = None
    wait: bool = True
    iter: dict[str, Any] = {}  # as the child's templates see it: `iter.parent`
    pinned: int | None = None  # the latest version at the first call of this child


class CommandParked(Base, frozen=True, tag="command.parked"):
    """The command waits without a worker: for a retry, a moment, a signal, an approval or a
    child."""

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
    question: dict[str, Any] = {}  # of an approval: what is asked, as scalars of 1 KB together

    @property
    def key(self) -> str:
        return f"command:{self.command_id}:{self.attempt}:parked"


class CommandReturned(Base, frozen=True, tag="command.returned"):
    """The worker gives the command back, because it ends or has no room. The command is queued as
    the next attempt. No lease was lost."""

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
    """The lease was lost. The command is queued as `attempt`; reports of the old attempt are
    refused."""

    command_id: CommandId
    attempt: int
    worker: str | None = None
    step: str = ""
    activation: ActivationId = ActivationId("")

    @property
    def key(self) -> str:
        return f"command:{self.command_id}:{self.attempt}:reclaimed"


class CommandDead(Base, frozen=True, tag="command.dead"):
    """Too many leases were lost. The step fails with WORKER_LOST."""

    older = ("tool.finished", "action_error")

    command_id: CommandId
    attempt: int
    step: str = ""
    activation: ActivationId = ActivationId("")

    @property
    def key(self) -> str:
        return f"command:{self.command_id}:end"


class CommandCancelled(Base, frozen=True, tag="command.cancelled"):
    """The command was stopped: it left the queue, its worker stopped it, or its lease ran out while
    it was being stopped."""

    command_id: CommandId
    attempt: int
    step: str = ""
    activation: ActivationId = ActivationId("")

    @property
    def key(self) -> str:
        return f"command:{self.command_id}:end"


class TaskDone(Base, frozen=True, tag="task.done"):
    """Journal: one task of a pipeline has ended. A new attempt continues at `goto`."""

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
    """Journal: one page (or poll) of a paginated call is stored. A new attempt continues from
    `cursor`."""

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
    """Journal: a try failed and is retried. The entry keeps the count of tries over a lost
    lease."""

    emitter = "worker"
    older = ("retry.started", "retry.processed")

    command_id: CommandId
    attempt: int
    task: str
    run: int
    tries: int
    error: Failure | None
    page: int = 0  # each page has its own count of tries
    delay: Micros = 0
    step: str = ""
    activation: ActivationId = ActivationId("")
    set: dict[str, Any] = {}

    @property
    def key(self) -> str:
        return f"retry:{self.command_id}:{self.task}:{self.run}:{self.page}:{self.tries}"


class CommandProgress(Base, frozen=True, tag="command.progress"):
    """Journal of a chunk, at most once a second: items before index `done` are finished. `items`
    and `result` cover the items since the previous entry; the final report covers the rest."""

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
    """Journal of a cursor loop: the claimed rows are stored, before the first of them is
    processed."""

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
    """A storage task has stored its input."""

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
    """What a loop runs over: a workload expression, a stored list, a cursor, failed items, or items
    that the server computed from literals and scalars (`inline`). A list of a payload is never
    inline."""

    kind: Literal["inline", "workload", "reference", "cursor", "failed"]
    size: int = 0
    total: int | None = None  # of kind `failed`: the number of all items of the loop
    skipped: int = 0  # of kind `failed`: how many of all items were skipped
    items: tuple[Any, ...] = ()
    reference: Reference | None = None
    manifest: Reference | None = None
    only: tuple[int, ...] = ()  # of kind `failed`: the indexes of its items, if they were chosen
    left: int = 0  # of kind `failed`: failed items that were not chosen and stay failed

    def find_indexes(self, first: int, count: int) -> tuple[int, int] | None:
        """Of kind `failed`: the lowest and the highest index of these items, if they were chosen."""
        chosen = self.only[first : first + count]
        return (chosen[0], chosen[-1]) if chosen else None


class LoopStarted(Base, frozen=True, tag="loop.started"):
    """An epoch of a loop begins; its size and collection are fixed before the first item runs. The
    activation is the epoch."""

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
    """One partition of a loop on Spark has ended."""

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
    """All partitions of a loop on Spark are counted."""

    step: str
    activation: ActivationId
    shards: int

    @property
    def key(self) -> str:
        return f"loop:{self.activation}:fanin"


class Stats(Struct, frozen=True):
    """The number of items of a loop, by how they ended."""

    total: int = 0
    ok: int = 0
    failed: int = 0
    skipped: int = 0


class LoopDone(Base, frozen=True, tag="loop.done"):
    """The epoch is closed; this happens once, and `stats` add up. The result is a manifest with one
    entry per item, in order."""

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
# A report of one of these types releases the command from its worker.
Ending = (
    CommandCompleted
    | CommandFailed
    | CommandParked
    | CommandReturned
    | CommandCancelled
    | ExpressionEvaluated
)
# Their repeats are not recognised by the state of an execution: requests, messages of other
# executions, and reports that leave no trace in a journal. The log stores their keys. Migration 0021
# repeats the list.
KeyedEvent = (
    SignalReceived
    | PlaybookPaused
    | PlaybookResumed
    | ExecutionReleased
    | ExecutionCancelling
    | ExecutionQuarantined
    | ChildStarted
    | ChildEnded
    | CommandClaimed
    | CommandStarted
    | StateConflict
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


def list_types_with(field: str) -> frozenset[type]:
    """The event types that have this field. Asking the type is cheaper than trying to read it."""
    return frozenset(event for event in get_args(Event) if field in event.__struct_fields__)


_RESULT_EVENTS = list_types_with("result")


def get_result(event: Any) -> Envelope | None:
    """The envelope of an event. None if it has none."""
    if type(event) not in _RESULT_EVENTS:
        return None
    result: Envelope | None = event.result
    return result
