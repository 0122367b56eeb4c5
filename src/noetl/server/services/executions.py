"""Executions: start, list, read, change. What people read comes from the projection; `min_seq` makes a read wait until the
projection has come that far, so that a client sees what it wrote."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec

from noetl.engine.explain import Explanation, explain
from noetl.engine.inheriting import preview
from noetl.engine.rewinding import Rewound
from noetl.engine.state import Execution, decode
from noetl.engine.summary import STATUSES
from noetl.log.port import EventLog, ExecutionFilter, Projection, Recorded
from noetl.model.clock import iso
from noetl.model.envelope import Envelope
from noetl.model.errors import Conflict, InvalidInput, NotFound, Unavailable
from noetl.model.identity import Identity
from noetl.model.ids import ExecutionId, Micros
from noetl.playbook import durations
from noetl.playbook.children import asks_latest
from noetl.server.playbooks import Playbooks, Version
from noetl.server.requests import RepeatWish, Requests
from noetl.server.services.access import Access
from noetl.server.services.details import (
    CHILDREN_LISTED,
    MAX_WORKLOAD_BYTES,
    Cause,
    ChildrenSeen,
    Detail,
    first_cause,
    shown_workload,
)
from noetl.server.services.live import ROWS, LiveUpdates, events_of, row_of
from noetl.server.services.requests import Asked, request_key, settle, why_refused
from noetl.server.shards import OwnedShards
from noetl.server.states import States, Unfoldable

PATIENCE = 5.0  # seconds that a read waits for `min_seq`
LOOK_EVERY = 0.25
START = "start"  # the key of what begins an execution, message and event
FIRST = 1  # no sequence number is smaller
Seen = TypeVar("Seen")
CHILDREN_EXPLAINED = 5
SCANNED = 10_000  # events that one read looks at


class NotYet(Unavailable):
    """What was asked for is not visible yet: try again."""

    code = "NOT_YET"


@dataclass(frozen=True, slots=True)
class Started:
    """`seq` is where it begins in the log: a read with `min_seq` of it shows the execution."""

    execution_id: ExecutionId
    created: bool | None  # False: that key had started it before; None: not known
    seq: int


@dataclass(frozen=True, slots=True)
class EventPage:
    """`next`: where to go on (`after`); None: there was nothing more."""

    events: list[Recorded]
    next: int | None


class ExecutionService:
    def __init__(
        self,
        log: EventLog,
        requests: Requests,
        states: States,
        playbooks: Playbooks,
        shards: OwnedShards,
        live: LiveUpdates,
        access: Access,
        new_id: Callable[[], ExecutionId],
    ) -> None:
        self._log = log
        self._requests = requests
        self._states = states
        self._playbooks = playbooks
        self._shards = shards
        self._live = live
        self._access = access
        self._new_id = new_id

    # -- beginning --

    async def start(
        self,
        identity: Identity,
        *,
        path: str | None = None,
        content: str | None = None,
        version: Version = None,
        payload: dict[str, Any] | None = None,
        key: str | None = None,
        wait: bool = False,
    ) -> Started:
        """Conflict when that key has started something else. `wait`: until it has begun."""
        drawn = self._new_id()
        execution_id = await self._requests.start(
            path,
            content=content,
            version=version,
            payload=payload,
            start_key=None if key is None else f"api:{key}",
            by=identity.name,
            tenant=identity.tenant,
            execution_id=drawn,
        )
        if execution_id != drawn and not await self._same(
            identity, execution_id, path, content, version, payload
        ):
            raise Conflict(
                f"this Idempotency-Key has started execution {execution_id}, of another playbook or workload",
                hint="repeat the request as it was, or draw a new key for a new execution",
            )
        return await self._begun(execution_id, execution_id == drawn, wait=wait)

    async def repeat(
        self,
        identity: Identity,
        execution_id: ExecutionId,
        wish: RepeatWish,
        key: str | None = None,
        *,
        wait: bool = False,
    ) -> Started:
        """A retry or a rerun: a new execution of one that has ended."""
        await self._access.check(identity, execution_id)
        drawn = self._new_id()
        new = await self._requests.repeat(
            execution_id, wish, request_key(key), identity.name, drawn
        )
        return await self._begun(new, new == drawn, wait=wait)

    async def preview(
        self, identity: Identity, execution_id: ExecutionId, wish: RepeatWish
    ) -> dict[str, Any]:
        """What a retry or rerun is going to do; refused as that would be."""
        await self._access.check(identity, execution_id)
        prepared = await self._requests.prepare_repeat(execution_id, wish)
        repeat = preview(prepared.plan, prepared.ended) if prepared.inherits else None
        before, after = shown_workload(prepared.before), shown_workload(prepared.workload)
        return {
            "execution_id": execution_id,
            "how": wish.how,
            "path": prepared.ended.path,
            "version": prepared.version,
            "version_before": prepared.ended.version,
            "inherited": list(repeat.inherited) if repeat else [],
            "entered": _entered(prepared.rewound),
            "begins": list(repeat.begins) if repeat else [prepared.plan.entry],
            "again": list(repeat.again) if repeat else list(prepared.plan.steps),
            "items": {
                step: {"again": again, "total": total}
                for step, (again, total) in repeat.items.items()
            }
            if repeat
            else {},
            "writes_again": {step: list(names) for step, names in repeat.writes_again.items()}
            if repeat
            else {},
            "changed_loops": list(prepared.changed_loops),
            "workload_changes": {
                name: {"before": before.get(name), "after": after.get(name)}
                for name in sorted({*before, *after})
                if before.get(name) != after.get(name)
            },
        }

    async def _begun(self, execution_id: ExecutionId, created: bool, *, wait: bool) -> Started:
        """It is accepted, whatever happens from here on: one that is not seen to begin in time does so later."""
        seq: int | None = None
        if wait:
            with suppress(Unavailable):
                _, seq = await settle(self._log, self._live, execution_id, START, START)
        return Started(execution_id, created, FIRST if seq is None else seq)

    async def _same(
        self,
        identity: Identity,
        execution_id: ExecutionId,
        path: str | None,
        content: str | None,
        version: Version,
        payload: dict[str, Any] | None,
    ) -> bool:
        """Would this request have started it? Without a version: with any that was the latest then."""
        pinned = await self._log.pinned(execution_id)
        if pinned is None:
            raise NotFound(f"no execution {execution_id}")
        named = content or (await self._playbooks.find(path or "", version, identity.tenant)).hash
        if named != pinned.playbook:
            earlier = content is None and asks_latest(version)
            if not earlier or (await self.get(identity, execution_id)).path != path:
                return False
        started = await self._playbooks.text(pinned.playbook)
        workload = await self._playbooks.workload(started, execution_id, payload)
        return _sorted(workload) == _sorted(pinned.workload)

    # -- changing --

    async def cancel(
        self, identity: Identity, execution_id: ExecutionId, key: str | None = None
    ) -> Asked:
        request = request_key(key)
        return await self._ask(
            identity,
            execution_id,
            request,
            self._requests.cancel,
            f"cancel:{request}",
            "cancelling:requested",
        )

    async def pause(
        self, identity: Identity, execution_id: ExecutionId, key: str | None = None
    ) -> Asked:
        request = request_key(key)
        return await self._ask(
            identity, execution_id, request, self._requests.pause, f"pause:{request}"
        )

    async def resume(
        self, identity: Identity, execution_id: ExecutionId, key: str | None = None
    ) -> Asked:
        request = request_key(key)
        return await self._ask(
            identity, execution_id, request, self._requests.resume, f"resume:{request}"
        )

    async def release(
        self, identity: Identity, execution_id: ExecutionId, key: str | None = None
    ) -> Asked:
        request = request_key(key)
        return await self._ask(
            identity, execution_id, request, self._requests.release, f"released:{request}"
        )

    async def _ask(
        self,
        identity: Identity,
        execution_id: ExecutionId,
        request: str,
        ask: Callable[..., Awaitable[bool]],
        message_key: str,
        event_key: str | None = None,
    ) -> Asked:
        await self._access.check(identity, execution_id)
        await ask(execution_id, request, by=identity.name)
        status, seq = await settle(
            self._log, self._live, execution_id, message_key, event_key or message_key
        )
        reason = None
        if status == "refused":
            what = message_key.partition(":")[0]
            reason = why_refused(what, await self._state(execution_id))
        return Asked(execution_id, request, status, seq, reason)

    # -- reading --

    async def page(
        self,
        identity: Identity,
        wanted: ExecutionFilter,
        before: ExecutionId | None = None,
        limit: int = 50,
        min_seq: int | None = None,
    ) -> list[Projection]:
        """Newest first; the id of the last one is where the next page begins."""
        if min_seq is not None:
            await self._listed(min_seq)
        return await self._log.executions(identity.tenant, wanted, before, limit)

    async def get(
        self, identity: Identity, execution_id: ExecutionId, min_seq: int | None = None
    ) -> Projection:
        await self._access.check(identity, execution_id)
        if min_seq is not None:
            return await self._projected(execution_id, min_seq)
        row = await self._log.projection(execution_id)
        return row if row is not None else await self._unprojected(execution_id)

    async def detail(
        self, identity: Identity, execution_id: ExecutionId, min_seq: int | None = None
    ) -> Detail:
        row = await self.get(identity, execution_id, min_seq)
        workload = await self.workload(identity, execution_id)
        counts = await self._log.child_counts(execution_id)
        newest: list[Projection] = []
        if counts:
            newest = await self._log.executions(
                identity.tenant, ExecutionFilter(parent=execution_id), None, CHILDREN_LISTED
            )
        small = len(msgspec.json.encode(workload)) <= MAX_WORKLOAD_BYTES
        cause = await first_cause(state_of(row), self._state)
        return Detail(row, workload if small else None, ChildrenSeen(counts, newest), cause)

    async def workload(self, identity: Identity, execution_id: ExecutionId) -> dict[str, Any]:
        """Merged over the playbook's defaults; without the keys of secrets."""
        await self._access.check(identity, execution_id)
        pinned = await self._log.pinned(execution_id)
        if pinned is None:
            raise NotFound(f"no execution {execution_id}")
        return shown_workload(pinned.workload)

    async def cause(self, identity: Identity, execution_id: ExecutionId) -> Cause | None:
        """The first causal failure, from the log as it stands."""
        await self._access.check(identity, execution_id)
        return await first_cause(await self._state(execution_id), self._state)

    async def _state(self, execution_id: ExecutionId) -> Execution | None:
        """From the log as it stands; None of one that cannot be folded, or is gone."""
        try:
            loaded = await self._states.read(execution_id)
        except Unfoldable:
            return None
        return None if loaded is None else loaded.state

    async def state(
        self, identity: Identity, execution_id: ExecutionId, min_seq: int | None = None
    ) -> Execution | None:
        """The state of the projection; None when it has none (yet, or because its log cannot be folded)."""
        return state_of(await self.get(identity, execution_id, min_seq))

    async def events(
        self,
        identity: Identity,
        execution_id: ExecutionId,
        *,
        after: int = 0,
        limit: int = 500,
        min_seq: int | None = None,
        wanted: Callable[[Recorded], bool] = lambda recorded: True,
    ) -> EventPage:
        """In the order of the log. Looks at a bounded number of events, whatever is wanted of them."""
        await self._access.check(identity, execution_id)
        if min_seq is not None:
            await self._recorded(execution_id, min_seq)
        found: list[Recorded] = []
        for _ in range(SCANNED // limit or 1):
            page = await self._log.events(execution_id, after, limit)
            for recorded in page:
                after = recorded.seq
                if wanted(recorded):
                    found.append(recorded)
                    if len(found) == limit:
                        return EventPage(found, after)
            if len(page) < limit:
                return EventPage(found, None)
        return EventPage(found, after)

    async def explain(
        self, identity: Identity, execution_id: ExecutionId, step: str
    ) -> Explanation:
        """From the log as it stands, not from a row that may lag behind it."""
        await self._access.check(identity, execution_id)
        loaded = await self._states.read(execution_id)
        if loaded is None:
            raise NotFound(f"no execution {execution_id}")
        if step not in loaded.fixed.plan.steps:
            raise NotFound(
                f"the playbook has no step {step!r}",
                hint=f"steps: {', '.join(loaded.fixed.plan.steps)}",
            )
        found = explain(loaded.fixed, loaded.state, step)
        if found.verdict == "waiting":
            children = await self._children_waited_for(loaded.state, step)
            return msgspec.structs.replace(found, because=(*found.because, *children))
        if found.verdict != "running":
            return found
        queued = await self._queued(identity, execution_id, step)
        return msgspec.structs.replace(found, because=(*queued, *found.because))

    async def _children_waited_for(self, state: Execution, step: str) -> list[str]:
        """How the children are that the step waits for: of many, the first ones."""
        parked = (
            live.parked
            for live in state.commands.values()
            if live.step == step and live.parked is not None
        )
        ids = [wait.child for wait in parked if wait.child is not None][:CHILDREN_EXPLAINED]
        rows = [row for each in ids if (row := await self._log.projection(each)) is not None]
        return [f"child {row.execution_id} ({row.path}) is {row.status}" for row in rows]

    async def _queued(self, identity: Identity, execution_id: ExecutionId, step: str) -> list[str]:
        """What its commands wait for that no worker has taken."""
        rows = await self._log.queue(identity.tenant, status="queued", execution_id=execution_id)
        pools = sorted({row.pool for row in rows if row.step == step})
        if not pools:
            return []
        has = {pool for worker in await self._log.workers(identity.tenant) for pool in worker.pools}
        return [
            f"its command waits in pool {pool!r}: "
            + ("no worker has taken it yet" if pool in has else _nobody(pool))
            for pool in pools
        ]

    async def result(self, identity: Identity, execution_id: ExecutionId, step: str) -> Envelope:
        """Of the step's last run, from the log as it stands."""
        await self._access.check(identity, execution_id)
        loaded = await self._states.read(execution_id)
        if loaded is None:
            raise NotFound(f"no execution {execution_id}")
        record = loaded.state.steps.get(step)
        if record is None or record.result is None:
            names = ", ".join(
                name for name, known in loaded.state.steps.items() if known.result is not None
            )
            raise NotFound(
                f"step {step!r} has no result", hint=f"steps that have one: {names or 'none'}"
            )
        return record.result

    async def _unprojected(self, execution_id: ExecutionId) -> Projection:
        """It was accepted and its owner has not begun it: what is known is what was asked for."""
        pinned = await self._log.pinned(execution_id)
        if pinned is None:
            raise NotFound(f"no execution {execution_id}")
        entry = await self._playbooks.text(pinned.playbook)
        return Projection(
            execution_id=execution_id,
            shard=self._shards.of(execution_id),
            tenant=pinned.tenant,
            path=entry.path,
            status="pending",
            last_seq=0,
            started_at=0,
            updated_at=0,
        )

    async def _projected(self, execution_id: ExecutionId, min_seq: int) -> Projection:
        async def look() -> Projection | None:
            row = await self._log.projection(execution_id)
            return row if row is not None and row.last_seq >= min_seq else None

        return await self._wait(row_of(execution_id), look, min_seq)

    async def _listed(self, min_seq: int) -> None:
        """Every shard counts for itself: each is to show what it has up to there."""
        behind = set(range(self._shards.count))

        async def look() -> bool | None:
            checkpoints = {shard: await self._log.checkpoint(shard) for shard in sorted(behind)}
            missing = await self._log.changes(checkpoints, 1)
            behind.intersection_update(
                {change.shard for change in missing if change.seq <= min_seq}
            )
            return not behind or None

        await self._wait(ROWS, look, min_seq)

    async def _recorded(self, execution_id: ExecutionId, min_seq: int) -> None:
        async def look() -> bool | None:
            return await self._log.last_seq(execution_id) >= min_seq or None

        await self._wait(events_of(execution_id), look, min_seq)

    async def _wait(
        self, topic: str, look: Callable[[], Awaitable[Seen | None]], min_seq: int
    ) -> Seen:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + PATIENCE
        with self._live.watch(topic) as watch:
            while True:
                if (found := await look()) is not None:
                    return found
                if self._live.closing or (left := deadline - loop.time()) <= 0:
                    raise NotYet(
                        f"seq {min_seq} is not visible yet",
                        hint="try again, or read without min_seq",
                    )
                await watch.changed(min(left, LOOK_EVERY))


def _entered(rewound: Rewound | None) -> dict[str, Any] | None:
    """Of a rerun from a step: which activation of the step it repeats."""
    return None if rewound is None else {"run": rewound.run, "at": iso(rewound.entered_at)}


def wanted_executions(
    now: Micros,
    status: str | None = None,
    path: str | None = None,
    parent: str | None = None,
    since: str | None = None,
    roots: bool = False,
) -> ExecutionFilter:
    """From what a person says: `since` is a time, or how long before `now`."""
    return ExecutionFilter(
        status=known_status(status),
        path=path,
        parent=None if parent is None else ExecutionId(parent),
        since=None if since is None else moment(since, now),
        roots=roots,
    )


def moment(text: str, now: Micros) -> Micros:
    """A time, or how long ago: `2026-01-31T08:00:00Z`, `1d`."""
    with suppress(ValueError):
        return now - durations.micros(text)
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        hint = "how long ago (1d, 2h, 30m), or ISO 8601, for example 2026-01-31T08:00:00Z"
        raise InvalidInput(f"since: {text!r} is not a time", hint=hint) from error
    found = found if found.tzinfo is not None else found.replace(tzinfo=UTC)
    return round(found.timestamp() * 1_000_000)


def known_status(status: str | None) -> str | None:
    """A status that no execution ever has would find nothing, and say nothing."""
    if status is not None and status not in STATUSES:
        raise InvalidInput(
            f"no execution is ever {status!r}", hint=f"statuses: {', '.join(STATUSES)}"
        )
    return status


def _nobody(pool: str) -> str:
    return f"no worker has that pool; `noetl worker start --pool {pool}` starts one"


def _sorted(value: Any) -> bytes:
    """As JSON, whatever the order of names: in Python 1 equals true."""
    return msgspec.json.encode(value, order="sorted")


def state_of(row: Projection) -> Execution | None:
    """None when the row has no state, or one of an older shape: the row is written anew when the execution goes on."""
    if row.state is None:
        return None
    try:
        return decode(row.state)
    except msgspec.DecodeError:
        return None
