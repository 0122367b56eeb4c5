"""Executions: start, list, read, change.

Most reads use the projection. With `min_seq` a read waits until the projection has come that far,
so that a client sees its own writes.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any, TypeVar

import msgspec

from noetl.engine.inheriting import Way, list_ways, predict_retry
from noetl.engine.rewinding import RewoundExecution
from noetl.engine.state import Execution, decode_execution
from noetl.log.projections.port import ExecutionFilter, Projection
from noetl.log.stores import Stores
from noetl.model.clock import format_iso
from noetl.model.envelope import Envelope
from noetl.model.errors import Conflict, NotFound, Unavailable
from noetl.model.identity import Identity, Permission, needs
from noetl.model.ids import ExecutionId
from noetl.playbook.children import asks_latest
from noetl.server.audit.recorder import AuditRecorder
from noetl.server.dispatch.playbooks import Playbooks, Version
from noetl.server.dispatch.requests import PreparedRepeat, RepeatWish, Requests
from noetl.server.dispatch.shards import OwnedShards
from noetl.server.dispatch.states import States, Unfoldable
from noetl.server.executions.access import Access
from noetl.server.executions.details import (
    MAX_LISTED_CHILDREN,
    MAX_SHOWN_WORKLOAD_BYTES,
    find_first_cause,
    make_children_view,
    make_detailed_view,
    strip_workload,
)
from noetl.server.executions.lists import read_list_page
from noetl.server.executions.request_outcomes import (
    explain_no_effect,
    make_request_key,
    wait_for_request_status,
)
from noetl.server.executions.rows import RowCache
from noetl.server.executions.views import (
    AskedView,
    CauseView,
    ChangeView,
    DetailedView,
    EnteredView,
    ExecutionsView,
    ItemsView,
    RepeatView,
    StartedView,
    StatusView,
    WayView,
)
from noetl.server.streams.live import ROWS_TOPIC, LiveUpdates, make_events_topic, make_row_topic

MIN_SEQ_TIMEOUT_S = 5.0  # seconds that a read waits for `min_seq`
MIN_SEQ_POLL_S = 0.25  # seconds between reads while it waits without a wake-up
START_KEY = "start"  # the key of the start, as a message and as an event
FIRST_SEQ = 1  # the smallest sequence number
Seen = TypeVar("Seen")


class NotYet(Unavailable):
    """The requested sequence number is not visible yet: try again."""

    code = "NOT_YET"


class ExecutionService:
    """Starts, changes and reads executions for a caller."""

    def __init__(
        self,
        stores: Stores,
        rows: RowCache,
        requests: Requests,
        states: States,
        playbooks: Playbooks,
        shards: OwnedShards,
        live: LiveUpdates,
        access: Access,
        new_id: Callable[[], ExecutionId],
        *,
        audit: AuditRecorder,
    ) -> None:
        self._log = stores.log
        self._inbox = stores.inbox
        self._projections = stores.projections
        self._rows = rows
        self._requests = requests
        self._states = states
        self._playbooks = playbooks
        self._shards = shards
        self._live = live
        self._access = access
        self._new_id = new_id
        self._audit = audit

    # -- starting --

    @needs(Permission.OPERATE)
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
    ) -> StartedView:
        """Start an execution; with `wait`, return once it has begun or after a second.

        Raises `Conflict` if the key has started an execution of another playbook or workload.
        """
        new_id = self._new_id()
        start_key = None if key is None else f"api:{key}"
        execution_id = await self._requests.start(
            path,
            content=content,
            version=version,
            payload=payload,
            start_key=start_key,
            by=identity.name,
            tenant=identity.tenant,
            execution_id=new_id,
        )
        created = execution_id == new_id
        if not created:
            matches = await self._would_start(
                identity, execution_id, path, content, version, payload
            )
            if not matches:
                raise Conflict(
                    f"this key has started execution {execution_id}, of another playbook or workload",
                    hint="repeat the request as it was, or draw a new key for a new execution",
                )
        return await self._make_started(execution_id, created, wait=wait)

    @needs(Permission.OPERATE)
    async def repeat(
        self,
        identity: Identity,
        execution_id: ExecutionId,
        wish: RepeatWish,
        key: str | None = None,
        *,
        wait: bool = False,
    ) -> StartedView:
        """Retry or rerun an ended execution as a new one."""
        await self._access.check_tenant(identity, execution_id)
        new_id = self._new_id()
        async with self._audit.record(identity, f"execution.{wish.how}", execution_id):
            started_id = await self._requests.repeat(
                execution_id, wish, make_request_key(key), identity.name, new_id
            )
        return await self._make_started(started_id, started_id == new_id, wait=wait)

    @needs(Permission.READ)
    async def preview(
        self, identity: Identity, execution_id: ExecutionId, wish: RepeatWish
    ) -> RepeatView:
        """What a retry or rerun would do. Raises the same errors as the repeat itself."""
        await self._access.check_tenant(identity, execution_id)
        prepared = await self._requests.prepare_repeat(execution_id, wish)
        return RepeatView(
            execution_id=execution_id,
            how=wish.how,
            path=prepared.ended.path,
            version=prepared.version,
            version_before=prepared.ended.version,
            **_describe_repeat(prepared),
            changed_loops=list(prepared.changed_loops),
            workload_changes=_diff_workloads(prepared),
        )

    async def _make_started(
        self, execution_id: ExecutionId, created: bool, *, wait: bool
    ) -> StartedView:
        """The answer to a start; with `wait`, with the seq of its first event.

        The start is accepted already, so errors while waiting are ignored.
        """
        seq: int | None = None
        if wait:
            with suppress(Unavailable):
                _, seq = await wait_for_request_status(
                    self._inbox, self._live, execution_id, START_KEY, START_KEY
                )
        if seq is None:
            seq = FIRST_SEQ
        return StartedView(execution_id=execution_id, created=created, seq=seq)

    async def _would_start(
        self,
        identity: Identity,
        execution_id: ExecutionId,
        path: str | None,
        content: str | None,
        version: Version,
        payload: dict[str, Any] | None,
    ) -> bool:
        """Whether this request would have started that execution.

        A request without a version matches any version of the path: it may have been the latest.
        """
        pinned = await self._log.read_pinned(execution_id)
        if pinned is None:
            raise NotFound(f"no execution {execution_id}")
        content_hash = content
        if not content_hash:
            entry = await self._playbooks.find_catalog_entry(path or "", version, identity.tenant)
            content_hash = entry.hash
        if content_hash != pinned.playbook:
            if content is not None or not asks_latest(version):
                return False
            row = await self.get_row(identity, execution_id)
            if row.path != path:
                return False
        tenant = pinned.tenant
        started = await self._playbooks.get_catalog_entry(pinned.playbook, tenant)
        workload = await self._playbooks.make_workload(started, tenant, execution_id, payload)
        return _encode_sorted(workload) == _encode_sorted(pinned.workload)

    # -- changing --

    @needs(Permission.OPERATE)
    async def cancel(
        self, identity: Identity, execution_id: ExecutionId, key: str | None = None
    ) -> AskedView:
        request = make_request_key(key)
        return await self._request_change(
            identity,
            execution_id,
            request,
            "cancel",
            self._requests.cancel,
            f"cancel:{request}",
            "cancelling:requested",
        )

    @needs(Permission.OPERATE)
    async def pause(
        self, identity: Identity, execution_id: ExecutionId, key: str | None = None
    ) -> AskedView:
        request = make_request_key(key)
        return await self._request_change(
            identity, execution_id, request, "pause", self._requests.pause, f"pause:{request}"
        )

    @needs(Permission.OPERATE)
    async def resume(
        self, identity: Identity, execution_id: ExecutionId, key: str | None = None
    ) -> AskedView:
        request = make_request_key(key)
        return await self._request_change(
            identity, execution_id, request, "resume", self._requests.resume, f"resume:{request}"
        )

    @needs(Permission.OPERATE)
    async def release(
        self, identity: Identity, execution_id: ExecutionId, key: str | None = None
    ) -> AskedView:
        request = make_request_key(key)
        return await self._request_change(
            identity,
            execution_id,
            request,
            "release",
            self._requests.release,
            f"released:{request}",
        )

    async def _request_change(
        self,
        identity: Identity,
        execution_id: ExecutionId,
        request: str,
        change: str,
        ask: Callable[..., Awaitable[bool]],
        message_key: str,
        event_key: str | None = None,
    ) -> AskedView:
        """Post a request and wait a moment for its effect."""
        await self._access.check_tenant(identity, execution_id)
        async with self._audit.record(identity, f"execution.{change}", execution_id):
            await ask(execution_id, request, by=identity.name)
        status, seq = await wait_for_request_status(
            self._inbox, self._live, execution_id, message_key, event_key or message_key
        )
        reason = None
        if status == "refused":
            what = message_key.partition(":")[0]
            reason = explain_no_effect(what, await self._fold_state(execution_id))
        return AskedView(execution_id, request, status, seq, reason)

    # -- reading --

    @needs(Permission.READ)
    async def list_page(
        self,
        identity: Identity,
        wanted: ExecutionFilter,
        before: ExecutionId | None = None,
        limit: int = 50,
        min_seq: int | None = None,
    ) -> ExecutionsView:
        """A page of executions, newest first."""
        if min_seq is not None:
            await self._wait_for_list(min_seq)
        return await read_list_page(self._projections, identity.tenant, wanted, before, limit)

    @needs(Permission.READ)
    async def list_rows(
        self, identity: Identity, wanted: ExecutionFilter, before: ExecutionId | None, limit: int
    ) -> list[Projection]:
        """The rows of a page. The last id is the `before` of the next page."""
        return await self._projections.list_executions(identity.tenant, wanted, before, limit)

    @needs(Permission.READ)
    async def get_row(
        self, identity: Identity, execution_id: ExecutionId, min_seq: int | None = None
    ) -> Projection:
        await self._access.check_tenant(identity, execution_id)
        if min_seq is not None:
            return await self._wait_for_row(execution_id, min_seq)
        row = await self._rows.read(execution_id)
        if row is None:
            return await self._make_pending_row(execution_id)
        return row

    @needs(Permission.READ)
    async def get_status(
        self,
        identity: Identity,
        execution_id: ExecutionId,
        min_seq: int | None = None,
        wait: int = 0,
    ) -> StatusView:
        """The status; with `wait`, after the end or the quarantine, or after so many seconds."""
        row = await self.get_row(identity, execution_id, min_seq)
        if wait:
            row = await self._wait_for_end(row, wait)
        return StatusView(
            execution_id=row.execution_id,
            status=row.status,
            ended=row.ended_at is not None,
            recovered=row.recovered,
            error=row.error,
            last_seq=row.last_seq,
        )

    @needs(Permission.READ)
    async def get_detail(
        self, identity: Identity, execution_id: ExecutionId, min_seq: int | None = None
    ) -> DetailedView:
        row = await self.get_row(identity, execution_id, min_seq)
        workload = await self.read_workload(identity, execution_id)
        counts = await self._projections.count_children(execution_id)
        newest: list[Projection] = []
        if counts:
            children = ExecutionFilter(parent=execution_id)
            newest = await self.list_rows(identity, children, None, MAX_LISTED_CHILDREN)
        is_small = len(msgspec.json.encode(workload)) <= MAX_SHOWN_WORKLOAD_BYTES
        shown = workload if is_small else None
        state = decode_row_state(row)
        cause = await find_first_cause(state, self._fold_state)
        return make_detailed_view(row, state, shown, make_children_view(counts, newest), cause)

    @needs(Permission.READ)
    async def read_workload(self, identity: Identity, execution_id: ExecutionId) -> dict[str, Any]:
        """The payload merged over the playbook's defaults, without keys that name secrets."""
        await self._access.check_tenant(identity, execution_id)
        pinned = await self._log.read_pinned(execution_id)
        if pinned is None:
            raise NotFound(f"no execution {execution_id}")
        return strip_workload(pinned.workload)

    @needs(Permission.READ)
    async def find_cause(self, identity: Identity, execution_id: ExecutionId) -> CauseView | None:
        """The first causal failure, from the log instead of the projection."""
        await self._access.check_tenant(identity, execution_id)
        state = await self._fold_state(execution_id)
        return await find_first_cause(state, self._fold_state)

    async def _fold_state(self, execution_id: ExecutionId) -> Execution | None:
        """The state from the log; None if the log cannot be folded or is gone."""
        try:
            loaded = await self._states.read(execution_id)
        except Unfoldable:
            return None
        if loaded is None:
            return None
        return loaded.state

    @needs(Permission.READ)
    async def get_projected_state(
        self, identity: Identity, execution_id: ExecutionId, min_seq: int | None = None
    ) -> Execution | None:
        """The state of the projection; None if it has none yet, or its log cannot be folded."""
        return decode_row_state(await self.get_row(identity, execution_id, min_seq))

    @needs(Permission.READ)
    async def get_result(
        self, identity: Identity, execution_id: ExecutionId, step: str
    ) -> Envelope:
        """The result of the step's last run, from the log."""
        await self._access.check_tenant(identity, execution_id)
        loaded = await self._states.read(execution_id)
        if loaded is None:
            raise NotFound(f"no execution {execution_id}")
        record = loaded.state.steps.get(step)
        if record is None or record.result is None:
            names = [name for name, other in loaded.state.steps.items() if other.result is not None]
            hint = f"steps that have one: {', '.join(names) or 'none'}"
            raise NotFound(f"step {step!r} has no result", hint=hint)
        return record.result

    async def _make_pending_row(self, execution_id: ExecutionId) -> Projection:
        """A row for an accepted execution that its owner has not begun yet."""
        pinned = await self._log.read_pinned(execution_id)
        if pinned is None:
            raise NotFound(f"no execution {execution_id}")
        entry = await self._playbooks.get_catalog_entry(pinned.playbook, pinned.tenant)
        return Projection(
            execution_id=execution_id,
            shard=self._shards.find_shard(execution_id),
            tenant=pinned.tenant,
            path=entry.path,
            status="pending",
            last_seq=0,
            started_at=0,
            updated_at=0,
        )

    async def _wait_for_row(self, execution_id: ExecutionId, min_seq: int) -> Projection:
        async def read_row() -> Projection | None:
            row = await self._rows.read(execution_id)
            if row is None or row.last_seq < min_seq:
                return None
            return row

        return await self._wait_until_visible(make_row_topic(execution_id), read_row, min_seq)

    async def _wait_for_end(self, row: Projection, seconds: int) -> Projection:
        """The row when the execution has ended or is quarantined, or when the time is over."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        with self._live.watch(make_row_topic(row.execution_id)) as watch:
            while True:
                row = await self._rows.read(row.execution_id) or row
                stands_still = row.ended_at is not None or row.status == "quarantined"
                left = deadline - loop.time()
                if stands_still or self._live.closing or left <= 0:
                    return row
                await watch.wait_for_change(min(left, MIN_SEQ_POLL_S))

    async def _wait_for_list(self, min_seq: int) -> None:
        """Wait until the projection of every shard has reached `min_seq`.

        Sequence numbers count per shard, so each shard has to show its events up to there.
        """
        behind = set(range(self._shards.count))

        async def read_checkpoints() -> bool | None:
            checkpoints = {
                shard: await self._projections.read_checkpoint(shard) for shard in sorted(behind)
            }
            missing = await self._log.read_changes(checkpoints, 1)
            behind.intersection_update(
                {change.shard for change in missing if change.seq <= min_seq}
            )
            return not behind or None

        await self._wait_until_visible(ROWS_TOPIC, read_checkpoints, min_seq)

    @needs(Permission.READ)
    async def wait_for_event(
        self, identity: Identity, execution_id: ExecutionId, min_seq: int
    ) -> None:
        """Wait until the log of the execution has reached `min_seq`."""
        await self._access.check_tenant(identity, execution_id)

        async def read_last_seq() -> bool | None:
            return await self._log.read_last_seq(execution_id) >= min_seq or None

        await self._wait_until_visible(make_events_topic(execution_id), read_last_seq, min_seq)

    async def _wait_until_visible(
        self, topic: str, look: Callable[[], Awaitable[Seen | None]], min_seq: int
    ) -> Seen:
        """Call `look` at every wake-up of the topic until it returns a value. Raises `NotYet`."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + MIN_SEQ_TIMEOUT_S
        with self._live.watch(topic) as watch:
            while True:
                found = await look()
                if found is not None:
                    return found
                left = deadline - loop.time()
                if self._live.closing or left <= 0:
                    raise NotYet(
                        f"seq {min_seq} is not visible yet",
                        hint="try again, or read without min_seq",
                    )
                await watch.wait_for_change(min(left, MIN_SEQ_POLL_S))


def _describe_activation(rewound: RewoundExecution | None) -> EnteredView | None:
    """The activation that a rerun from a step repeats; None for other repeats."""
    if rewound is None:
        return None
    return EnteredView(run=rewound.run, at=format_iso(rewound.entered_at))


def _describe_repeat(prepared: PreparedRepeat) -> dict[str, Any]:
    """The steps and items that a repeat runs again, and the steps it takes over."""
    entered = _describe_activation(prepared.rewound)
    if not prepared.inherits:
        return {
            "inherited": [],
            "entered": entered,
            "begins": [prepared.plan.entry_step],
            "again": list(prepared.plan.steps),
            "ways": _make_way_views(list_ways(prepared.plan, prepared.plan.steps)),
            "items": {},
            "writes_again": {},
        }
    repeat = predict_retry(prepared.plan, prepared.ended)
    items = {
        step: ItemsView(again, total, repeat.left.get(step, 0), step in repeat.fails_again)
        for step, (again, total) in repeat.items.items()
    }
    return {
        "inherited": list(repeat.inherited),
        "entered": entered,
        "begins": list(repeat.begins),
        "again": list(repeat.again),
        "ways": _make_way_views(repeat.ways),
        "items": items,
        "writes_again": {step: list(names) for step, names in repeat.writes_again.items()},
    }


def _make_way_views(ways: Iterable[Way]) -> list[WayView]:
    views: list[WayView] = []
    for way in ways:
        view = WayView(way.step, list(way.to), list(way.maybe), way.one, way.has_else)
        views.append(view)
    return views


def _diff_workloads(prepared: PreparedRepeat) -> dict[str, ChangeView]:
    before = strip_workload(prepared.before)
    after = strip_workload(prepared.workload)
    return {
        name: ChangeView(before=before.get(name), after=after.get(name))
        for name in sorted({*before, *after})
        if before.get(name) != after.get(name)
    }


def _encode_sorted(value: Any) -> bytes:
    """Canonical JSON, to compare two values. A comparison in Python would take 1 for true."""
    return msgspec.json.encode(value, order="sorted")


def decode_row_state(row: Projection) -> Execution | None:
    """The state of the row; None if it has none, or one of an older shape.

    A row of an older shape is replaced when the execution goes on.
    """
    if row.state is None:
        return None
    try:
        return decode_execution(row.state)
    except msgspec.DecodeError:
        return None
