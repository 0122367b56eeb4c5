"""What people and programs ask for. A request is a message in an inbox, true when it is written; `request` is its key:
asking twice with one key is asking once. Starting validates first, so that what is accepted can run."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict, Unpack

from msgspec.structs import replace

from noetl.bus import port as bus_port
from noetl.bus.port import Bus
from noetl.catalog.port import CatalogEntry
from noetl.engine import inheriting
from noetl.engine.rewinding import Rewound
from noetl.engine.state import Execution
from noetl.log.port import EventLog, Pinned
from noetl.model import codec
from noetl.model.approvals import HINT as APPROVAL_HINT
from noetl.model.approvals import is_approval, problem_with_approval
from noetl.model.errors import Conflict, InvalidInput, NotFound
from noetl.model.ids import DEFAULT_TENANT, ExecutionId, Tenant, shard_of
from noetl.model.messages import Cancel, Message, Pause, Release, Resume, Signal, Start
from noetl.playbook.plan import Plan
from noetl.playbook.workload import over
from noetl.server.pins import ChildPins
from noetl.server.playbooks import Playbooks, Version
from noetl.server.states import States, Unfoldable

SIGNAL_LIMIT = 8 * 1024


def check_signal(name: str, payload: Any, what: str) -> None:
    """Refuse a payload that is too large, and an approval that neither approves nor rejects."""
    if (size := len(codec.encode(payload))) > SIGNAL_LIMIT:
        raise InvalidInput(
            f"{what} is {size} bytes, the limit is {SIGNAL_LIMIT}", hint="send a reference"
        )
    problem = problem_with_approval(payload) if is_approval(name) else None
    if problem is not None:
        raise InvalidInput(
            f"the signal {name} neither approves nor rejects: {problem}", hint=APPROVAL_HINT
        )


class StartOptions(TypedDict, total=False):
    """What a start may say beside the path, as `Requests.prepare` takes it."""

    content: str | None
    version: str | int | None
    payload: dict[str, Any] | None
    start_key: str | None
    by: str | None
    tenant: Tenant
    execution_id: ExecutionId | None


@dataclass(frozen=True, slots=True)
class RepeatWish:
    """How to repeat an ended execution. Without a version: with the one it had. `payload` is laid over its workload."""

    how: Literal["retry", "rerun"]
    version: Version = None
    from_step: str | None = None
    payload: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PreparedRepeat:
    plan: Plan
    ended: Execution  # as the new one is going to see it
    tenant: Tenant
    version: int | None
    before: dict[str, Any]
    workload: dict[str, Any]
    inherits: bool
    rewound: Rewound | None = None  # of a rerun from a step
    changed_loops: tuple[
        str, ...
    ] = ()  # steps: failed items run again, and this version writes `loop.in` differently


def _never_entered(ended: Execution, step: str) -> Conflict:
    record = ended.steps.get(step)
    if record is not None and record.status == "inherited" and ended.retry_of is not None:
        message = f"step {step!r} did not run in execution {ended.execution_id}: it took its result over from"
        message += f" execution {ended.retry_of}"
        return Conflict(
            message,
            hint=f"rerun execution {ended.retry_of} from this step, or rerun this one from another",
        )
    ran = [
        name for name, known in ended.steps.items() if known.runs and known.status != "inherited"
    ]
    message = f"step {step!r} did not run in execution {ended.execution_id}"
    return Conflict(message, hint=f"it ran {', '.join(ran) or 'none'}")


def _check_inheritance(plan: Plan, ended: Execution, version: int | None) -> None:
    problems = inheriting.misfits(plan, ended)
    if problems:
        raise Conflict(
            f"version {version} cannot go on from execution {ended.execution_id}: {'; '.join(problems)}",
            hint="rerun it from the beginning, or from an earlier step",
        )


class Requests:
    def __init__(
        self,
        log: EventLog,
        bus: Bus,
        playbooks: Playbooks,
        states: States,
        new_id: Callable[[], ExecutionId],
        shards: int,
    ) -> None:
        self._log = log
        self._bus = bus
        self._playbooks = playbooks
        self._pins = ChildPins(playbooks)
        self._states = states
        self._new_id = new_id
        self._shards = shards

    # -- beginning --

    async def start(self, path: str | None = None, **wish: Unpack[StartOptions]) -> ExecutionId:
        """A known `start_key` gives the execution that it started."""
        return await self.begin(*await self.prepare(path, **wish))

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
        """What is to be written, with its workload; `begun` says that it was. By path or by content hash. A caller that may have
        to repeat without a key draws the id first (`new_id`)."""
        entry = await self._entry(path, content, version, tenant)
        plan = await self._playbooks.plan(entry.hash)
        start = Start(
            execution_id=execution_id or self._new_id(),
            path=entry.path,
            playbook=entry.hash,
            version=entry.version,
            start_key=start_key,
            tenant=tenant,
            by=by,
            pins=await self._pins.at_start(plan, tenant),
        )
        return start, await self._playbooks.workload(entry, start.execution_id, payload)

    async def begun(self, start: Start) -> None:
        await self._hint(start.execution_id)

    async def repeat(
        self,
        execution_id: ExecutionId,
        wish: RepeatWish,
        request: str,
        by: str | None,
        new_id: ExecutionId | None = None,
    ) -> ExecutionId:
        """A new execution of an ended one: from the beginning, or with what the ended one has finished. Another id than `new_id`
        is that of an execution which the same request has started before."""
        new_id = new_id or self._new_id()
        repeat = await self.prepare_repeat(execution_id, wish, new_id)
        key = f"{wish.how}:{execution_id}:{request}"
        start = Start(
            execution_id=new_id,
            path=repeat.ended.path,
            playbook=repeat.plan.hash,
            version=repeat.version,
            pins=await self._pins.at_start(repeat.plan, repeat.tenant),
            start_key=key,
            tenant=repeat.tenant,
            by=by,
            retry_of=execution_id if repeat.inherits else None,
            from_step=wish.from_step,
            workload_by_reference=repeat.ended.workload_by_reference,
        )
        return await self.begin(start, repeat.workload)

    async def retry(
        self, execution_id: ExecutionId, request: str, *, by: str | None = None
    ) -> ExecutionId:
        """A new execution that takes over what the ended one finished, and runs the rest."""
        return await self.repeat(execution_id, RepeatWish("retry"), request, by)

    async def rerun(
        self, execution_id: ExecutionId, request: str, *, by: str | None = None
    ) -> ExecutionId:
        """The same playbook and workload from the beginning."""
        return await self.repeat(execution_id, RepeatWish("rerun"), request, by)

    async def prepare_repeat(
        self, execution_id: ExecutionId, wish: RepeatWish, new_id: ExecutionId | None = None
    ) -> PreparedRepeat:
        """What would be repeated; Conflict or NotFound says why that cannot be."""
        pinned = await self._pinned(execution_id)
        ended = await self._ended(execution_id)
        if ended is None:
            raise Conflict(
                f"execution {execution_id} has not ended",
                hint="cancel it first, or wait for its end",
            )
        if (
            wish.how == "retry"
            and ended.status == "completed"
            and not inheriting.loops_with_failed_items(ended)
        ):
            message = f"execution {execution_id} has completed, and nothing is left to run: none of its items can be run again"
            raise Conflict(message, hint="rerun it; a cursor loop then claims rows again")
        entry = replace(
            await self._playbooks.text(pinned.playbook), path=ended.path, version=ended.version or 0
        )
        if wish.version is not None:
            entry = await self._playbooks.find(ended.path, wish.version, pinned.tenant)
        changed = entry.hash != pinned.playbook
        plan = await self._playbooks.plan(entry.hash)
        rewound = None
        if wish.from_step is not None:
            rewound = await self._rewound(plan, ended, wish.from_step)
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
            before = await self._playbooks.plan(pinned.playbook)
            prepared = dataclasses.replace(
                prepared, changed_loops=inheriting.changed_loops(before, plan, ended)
            )
        if wish.payload or changed:
            payload = over(pinned.workload, wish.payload)
            workload = await self._playbooks.workload(entry, new_id or execution_id, payload)
            prepared = dataclasses.replace(prepared, workload=workload)
        return prepared

    async def _rewound(self, plan: Plan, ended: Execution, step: str) -> Rewound:
        if step not in plan.steps:
            raise NotFound(
                f"the playbook has no step {step!r}", hint=f"steps: {', '.join(plan.steps)}"
            )
        rewound = await self._states.rewound(ended.execution_id, step, plan)
        if rewound is None:
            raise _never_entered(ended, step)
        if rewound.final:
            message = f"step {step!r} is the final step of the playbook: it runs at the end of every execution"
            raise Conflict(message, hint="rerun it from an earlier step, or from the beginning")
        return rewound

    # -- changing --

    async def cancel(
        self, execution_id: ExecutionId, request: str, *, by: str | None = None
    ) -> bool:
        return await self._post(execution_id, Cancel(request=request, by=by))

    async def pause(
        self, execution_id: ExecutionId, request: str, *, by: str | None = None
    ) -> bool:
        return await self._post(execution_id, Pause(request=request, by=by))

    async def resume(
        self, execution_id: ExecutionId, request: str, *, by: str | None = None
    ) -> bool:
        return await self._post(execution_id, Resume(request=request, by=by))

    async def release(
        self, execution_id: ExecutionId, request: str, *, by: str | None = None
    ) -> bool:
        return await self._post(execution_id, Release(request=request, by=by))

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
        return await self._post(
            execution_id, Signal(name=name, request=request, payload=payload, by=by)
        )

    async def _entry(
        self, path: str | None, content: str | None, version: Version, tenant: Tenant
    ) -> CatalogEntry:
        if content is not None:
            return await self._playbooks.text(content, tenant)
        if path is None:
            raise InvalidInput("which playbook?", hint="give a path or a content hash")
        return await self._playbooks.find(path, version, tenant)

    async def begin(self, start: Start, workload: dict[str, Any]) -> ExecutionId:
        execution_id = await self._log.start(start, workload)
        await self._hint(execution_id)
        return execution_id

    async def _post(self, execution_id: ExecutionId, message: Message) -> bool:
        """False: that request was there already. Conflict: the execution has ended."""
        await self._pinned(execution_id)
        if await self._ended(execution_id) is not None:
            raise Conflict(
                f"execution {execution_id} has ended", hint="the end is final; retry or rerun it"
            )
        posted = await self._log.post(execution_id, message)
        await self._hint(execution_id)
        return posted

    async def _pinned(self, execution_id: ExecutionId) -> Pinned:
        pinned = await self._log.pinned(execution_id)
        if pinned is None:
            raise NotFound(f"no execution {execution_id}")
        return pinned

    async def _ended(self, execution_id: ExecutionId) -> Execution | None:
        """Its final state, if it has ended: from the log, not from a row that may lag behind it."""
        try:
            loaded = await self._states.read(execution_id)
        except Unfoldable:
            return None
        return loaded.state if loaded is not None and loaded.state.terminal else None

    async def _hint(self, execution_id: ExecutionId) -> None:
        await self._bus.publish(bus_port.inbox(shard_of(execution_id, self._shards)))
