"""Requests of people and programs: start, repeat, cancel, pause, resume, release, signal.

A request is a message in the inbox of its execution, accepted once it is written. `request` is its
key: a second request with the same key has no effect. A start is validated first, so that an
accepted execution can run.
"""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, Literal, TypedDict, Unpack

from msgspec import Struct, field
from msgspec.structs import replace

from noetl.bus import port as bus_port
from noetl.bus.port import Bus
from noetl.catalog.port import CatalogEntry
from noetl.engine import inheriting
from noetl.engine.rewinding import RewoundExecution
from noetl.engine.state import Execution
from noetl.log.events.port import EventLog, PinnedExecution
from noetl.log.inbox.port import Inbox
from noetl.model import codec
from noetl.model.approvals import APPROVAL_HINT as APPROVAL_HINT
from noetl.model.approvals import is_approval, problem_with_approval
from noetl.model.errors import Conflict, InvalidInput, NotFound, QuotaExceeded
from noetl.model.ids import DEFAULT_TENANT, ExecutionId, Tenant, shard_of
from noetl.model.messages import (
    Cancel,
    Message,
    Pause,
    Release,
    Resume,
    RetryChoice,
    Signal,
    Start,
)
from noetl.playbook.merging import merge_deep
from noetl.playbook.plan import Plan
from noetl.server.dispatch.pins import ChildPins
from noetl.server.dispatch.playbooks import Playbooks, Version
from noetl.server.dispatch.states import States, Unfoldable
from noetl.server.tenants.quotas import QuotaGuard

MAX_SIGNAL_BYTES = 8 * 1024


def check_signal(name: str, payload: Any, what: str) -> None:
    """Refuse a payload that is too large, and an approval that neither approves nor rejects."""
    size = len(codec.encode(payload))
    if size > MAX_SIGNAL_BYTES:
        raise InvalidInput(
            f"{what} is {size} bytes, the limit is {MAX_SIGNAL_BYTES}", hint="send a reference"
        )
    if not is_approval(name):
        return
    problem = problem_with_approval(payload)
    if problem is not None:
        raise InvalidInput(
            f"the signal {name} neither approves nor rejects: {problem}", hint=APPROVAL_HINT
        )


class StartOptions(TypedDict, total=False):
    """The options of a start beside the path, as `Requests.prepare` takes them."""

    content: str | None
    version: str | int | None
    payload: dict[str, Any] | None
    start_key: str | None
    by: str | None
    tenant: Tenant
    execution_id: ExecutionId | None


class RepeatWish(Struct, frozen=True):
    """How to repeat an ended execution. Items that `only` names have failed: `ItemService` checks it.

    `version` None keeps the version it had. `payload` is merged over its workload.
    """

    how: Literal["retry", "rerun"]
    version: Version = None
    from_step: str | None = None
    payload: dict[str, Any] = field(default_factory=dict)
    only: RetryChoice | None = None  # of a retry: what runs again, if not all that did not finish


class PreparedRepeat(Struct, frozen=True):
    """A validated repeat of an ended execution, before it is started."""

    plan: Plan
    ended: Execution  # rewound if the repeat begins at a step
    tenant: Tenant
    version: int | None
    before: dict[str, Any]
    workload: dict[str, Any]
    inherits: bool
    rewound: RewoundExecution | None = None  # for a rerun from a step
    # steps that run failed items again, although this version writes `loop.in` differently
    changed_loops: tuple[str, ...] = ()


def _make_not_run_conflict(ended: Execution, step: str) -> Conflict:
    record = ended.steps.get(step)
    if record is not None and record.status == "inherited" and ended.retry_of is not None:
        message = f"step {step!r} did not run in execution {ended.execution_id}: it took its result over from"
        message += f" execution {ended.retry_of}"
        return Conflict(
            message,
            hint=f"rerun execution {ended.retry_of} from this step, or rerun this one from another",
        )
    ran = [
        name for name, other in ended.steps.items() if other.runs and other.status != "inherited"
    ]
    message = f"step {step!r} did not run in execution {ended.execution_id}"
    return Conflict(message, hint=f"it ran {', '.join(ran) or 'none'}")


def _check_retry(plan: Plan, ended: Execution) -> None:
    """Refuse to retry a completed execution, unless a loop of it has failed items."""
    if ended.status != "completed" or inheriting.find_loops_with_failed_items(ended):
        return
    message = f"execution {ended.execution_id} has completed, and nothing is left to run"
    hint = "rerun it"
    loops = [planned.step.loop for planned in plan.steps.values() if planned.step.loop is not None]
    if loops:
        message += ": none of its items can be run again"
    if any(loop.cursor is not None for loop in loops):
        hint += "; a cursor loop then claims rows again"
    raise Conflict(message, hint=hint)


def _check_choice(plan: Plan, ended: Execution, only: RetryChoice) -> None:
    """Refuse a retry of parts that cannot run again alone."""
    problems = inheriting.find_choice_problems(plan, ended, only)
    if problems:
        raise Conflict(
            f"execution {ended.execution_id} cannot be retried in this part: {'; '.join(problems)}",
            hint="choose others, or retry everything that did not finish",
        )


def _check_inheritance(plan: Plan, ended: Execution, version: int | None) -> None:
    """Refuse a version that does not fit to the state of the ended execution."""
    problems = inheriting.find_misfits(plan, ended)
    if problems:
        raise Conflict(
            f"version {version} cannot go on from execution {ended.execution_id}: {'; '.join(problems)}",
            hint="rerun it from the beginning, or from an earlier step",
        )


class Requests:
    """Validates requests and writes them into inboxes."""

    def __init__(
        self,
        log: EventLog,
        inbox: Inbox,
        bus: Bus,
        playbooks: Playbooks,
        states: States,
        new_id: Callable[[], ExecutionId],
        shards: int,
        quotas: QuotaGuard | None = None,
    ) -> None:
        self._log = log
        self._inbox = inbox
        self._bus = bus
        self._playbooks = playbooks
        self._pins = ChildPins(playbooks)
        self._states = states
        self._new_id = new_id
        self._shards = shards
        self._quotas = quotas

    # -- starting --

    async def start(self, path: str | None = None, **options: Unpack[StartOptions]) -> ExecutionId:
        """Start an execution. A known `start_key` returns the execution that it started before."""
        start, workload = await self.prepare(path, **options)
        return await self.write_start(start, workload)

    async def prepare(
        self,
        path: str | None = None,
        *,
        content: str | None = None,
        version: Version = None,
        payload: dict[str, Any] | None = None,
        start_key: str | None = None,
        by: str | None = None,
        tenant: Tenant = DEFAULT_TENANT,
        execution_id: ExecutionId | None = None,
    ) -> tuple[Start, dict[str, Any]]:
        """The `Start` to write, and its workload. Names the playbook by path or by content hash.

        A caller that writes the start itself then wakes the owner of its shard. A caller that may
        have to repeat the call without a `start_key` draws an id first and passes `execution_id`.
        """
        entry = await self._find_entry_to_start(path, content, version, tenant)
        plan = await self._playbooks.get_plan(entry.hash, tenant)
        start = Start(
            execution_id=execution_id or self._new_id(),
            path=entry.path,
            playbook=entry.hash,
            version=entry.version,
            start_key=start_key,
            tenant=tenant,
            by=by,
            pins=await self._pins.pin_at_start(plan, tenant),
        )
        workload = await self._playbooks.make_workload(entry, tenant, start.execution_id, payload)
        return start, workload

    async def announce_start(self, start: Start) -> None:
        """Wake the owner of its shard. Call it after the start is written."""
        await self._hint_owner(start.execution_id)

    async def repeat(
        self,
        execution_id: ExecutionId,
        wish: RepeatWish,
        request: str,
        by: str | None,
        new_id: ExecutionId | None = None,
    ) -> ExecutionId:
        """Start a new execution of an ended one: from the beginning, or with its finished work.

        Returns another id than `new_id` if the same request has started an execution before.
        """
        new_id = new_id or self._new_id()
        repeat = await self.prepare_repeat(execution_id, wish, new_id)
        key = f"{wish.how}:{execution_id}:{request}"
        start = Start(
            execution_id=new_id,
            path=repeat.ended.path,
            playbook=repeat.plan.hash,
            version=repeat.version,
            pins=await self._pins.pin_at_start(repeat.plan, repeat.tenant),
            start_key=key,
            tenant=repeat.tenant,
            by=by,
            retry_of=execution_id if repeat.inherits else None,
            from_step=wish.from_step,
            workload_by_reference=repeat.ended.workload_by_reference,
            only=wish.only,
        )
        return await self.write_start(start, repeat.workload)

    async def retry(
        self, execution_id: ExecutionId, request: str, *, by: str | None = None
    ) -> ExecutionId:
        """Start an execution that takes over what the ended one finished, and runs the rest."""
        return await self.repeat(execution_id, RepeatWish("retry"), request, by)

    async def rerun(
        self, execution_id: ExecutionId, request: str, *, by: str | None = None
    ) -> ExecutionId:
        """Start an execution of the same playbook and workload from the beginning."""
        return await self.repeat(execution_id, RepeatWish("rerun"), request, by)

    async def prepare_repeat(
        self, execution_id: ExecutionId, wish: RepeatWish, new_id: ExecutionId | None = None
    ) -> PreparedRepeat:
        """What a repeat would do. Raises `Conflict` or `NotFound` if it is not possible."""
        pinned = await self._get_pinned(execution_id)
        ended = await self._read_ended_state(execution_id)
        if ended is None:
            raise Conflict(
                f"execution {execution_id} has not ended",
                hint="cancel it first, or wait for its end",
            )
        if wish.how == "retry":
            _check_retry(await self._playbooks.get_plan(pinned.playbook, pinned.tenant), ended)
        if wish.only is not None:
            before = await self._playbooks.get_plan(pinned.playbook, pinned.tenant)
            _check_choice(before, ended, wish.only)
            ended = inheriting.narrow_retry(ended, wish.only)
        entry = await self._find_entry_to_repeat(pinned, ended, wish)
        changed = entry.hash != pinned.playbook
        plan = await self._playbooks.get_plan(entry.hash, pinned.tenant)
        rewound = None
        if wish.from_step is not None:
            rewound = await self._rewind_to_step(plan, ended, wish.from_step)
            ended = rewound.state
        prepared = PreparedRepeat(
            plan=plan,
            ended=ended,
            tenant=pinned.tenant,
            version=entry.version or None,
            before=pinned.workload,
            workload=pinned.workload,
            inherits=wish.how == "retry" or wish.from_step is not None,
            rewound=rewound,
        )
        if changed and prepared.inherits:
            _check_inheritance(plan, ended, entry.version)
            before = await self._playbooks.get_plan(pinned.playbook, pinned.tenant)
            prepared = replace(
                prepared, changed_loops=inheriting.find_changed_loops(before, plan, ended)
            )
        if wish.payload or changed:
            payload = merge_deep(pinned.workload, wish.payload)
            workload = await self._playbooks.make_workload(
                entry, pinned.tenant, new_id or execution_id, payload
            )
            prepared = replace(prepared, workload=workload)
        return prepared

    async def _find_entry_to_repeat(
        self, pinned: PinnedExecution, ended: Execution, wish: RepeatWish
    ) -> CatalogEntry:
        text = await self._playbooks.get_catalog_entry(pinned.playbook, pinned.tenant)
        if wish.version is not None:
            return await self._playbooks.find_catalog_entry(ended.path, wish.version, pinned.tenant)
        return replace(text, path=ended.path, version=ended.version or 0)

    async def _rewind_to_step(self, plan: Plan, ended: Execution, step: str) -> RewoundExecution:
        """The execution before its last entry of this step. Raises if it cannot begin there."""
        if step not in plan.steps:
            raise NotFound(
                f"the playbook has no step {step!r}", hint=f"steps: {', '.join(plan.steps)}"
            )
        rewound = await self._states.rewind_execution(ended.execution_id, step, plan)
        if rewound is None:
            raise _make_not_run_conflict(ended, step)
        if rewound.final:
            message = f"step {step!r} is the final step of the playbook: it runs at the end of every execution"
            raise Conflict(message, hint="rerun it from an earlier step, or from the beginning")
        return rewound

    # -- changing --

    async def cancel(
        self, execution_id: ExecutionId, request: str, *, by: str | None = None
    ) -> bool:
        return await self._post_to_inbox(execution_id, Cancel(request=request, by=by))

    async def pause(
        self, execution_id: ExecutionId, request: str, *, by: str | None = None
    ) -> bool:
        return await self._post_to_inbox(execution_id, Pause(request=request, by=by))

    async def resume(
        self, execution_id: ExecutionId, request: str, *, by: str | None = None
    ) -> bool:
        return await self._post_to_inbox(execution_id, Resume(request=request, by=by))

    async def release(
        self, execution_id: ExecutionId, request: str, *, by: str | None = None
    ) -> bool:
        return await self._post_to_inbox(execution_id, Release(request=request, by=by))

    async def signal(
        self,
        execution_id: ExecutionId,
        name: str,
        request: str,
        payload: Any = None,
        *,
        by: str | None = None,
    ) -> bool:
        check_signal(name, payload, "the signal's payload")
        return await self._post_to_inbox(
            execution_id, Signal(name=name, request=request, payload=payload, by=by)
        )

    async def _find_entry_to_start(
        self, path: str | None, content: str | None, version: Version, tenant: Tenant
    ) -> CatalogEntry:
        if content is not None:
            return await self._playbooks.get_catalog_entry(content, tenant)
        if path is None:
            raise InvalidInput("which playbook?", hint="give a path or a content hash")
        return await self._playbooks.find_catalog_entry(path, version, tenant)

    async def write_start(self, start: Start, workload: dict[str, Any]) -> ExecutionId:
        """Write a prepared start. A known `start_key` returns the execution that it started.

        Raises `QuotaExceeded`, but not for a start that was accepted before.
        """
        try:
            async with self._admit_start(start):
                execution_id = await self._inbox.start_execution(start, workload)
        except QuotaExceeded:
            known = await self._find_started(start)
            if known is None:
                raise
            execution_id = known
        if self._quotas is not None and execution_id != start.execution_id:
            self._quotas.forget_start(start.tenant, start.execution_id)
        await self._hint_owner(execution_id)
        return execution_id

    async def check_quotas(self, tenant: Tenant) -> None:
        """Raise `QuotaExceeded` if the tenant has no room for one more execution."""
        if self._quotas is not None:
            await self._quotas.check_room(tenant)

    def _admit_start(self, start: Start) -> AbstractAsyncContextManager[None]:
        if self._quotas is None:
            return nullcontext()
        return self._quotas.admit_start(start.tenant, start.execution_id)

    async def _find_started(self, start: Start) -> ExecutionId | None:
        if start.start_key is None:
            return None
        return await self._inbox.find_started(start.tenant, start.start_key)

    async def _post_to_inbox(self, execution_id: ExecutionId, message: Message) -> bool:
        """Write the message into the inbox; False if a request with its key is there already.

        Raises `Conflict` if the execution has ended.
        """
        await self._get_pinned(execution_id)
        if await self._read_ended_state(execution_id) is not None:
            raise Conflict(
                f"execution {execution_id} has ended", hint="the end is final; retry or rerun it"
            )
        posted = await self._inbox.post_message(execution_id, message)
        await self._hint_owner(execution_id)
        return posted

    async def _get_pinned(self, execution_id: ExecutionId) -> PinnedExecution:
        pinned = await self._log.read_pinned(execution_id)
        if pinned is None:
            raise NotFound(f"no execution {execution_id}")
        return pinned

    async def _read_ended_state(self, execution_id: ExecutionId) -> Execution | None:
        """Its final state if it has ended, from the log: the projection may lag behind."""
        try:
            loaded = await self._states.read(execution_id)
        except Unfoldable:
            return None
        if loaded is None or not loaded.state.terminal:
            return None
        return loaded.state

    async def _hint_owner(self, execution_id: ExecutionId) -> None:
        await self._bus.publish(bus_port.make_inbox_subject(shard_of(execution_id, self._shards)))
