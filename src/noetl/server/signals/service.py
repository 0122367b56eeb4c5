"""Events from outside. Each becomes a signal of its name, kept in order until a `wait` takes it."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from noetl.log.inbox.port import Inbox
from noetl.model.identity import Identity, Permission, needs
from noetl.model.ids import ExecutionId
from noetl.server.audit.recorder import AuditRecorder
from noetl.server.dispatch.requests import Requests, check_signal
from noetl.server.executions.access import Access
from noetl.server.executions.request_outcomes import (
    make_request_key,
    read_request_status,
)
from noetl.server.executions.views import AskedView, RequestStatus
from noetl.server.signals.views import BatchStatusView, EventStatusView

MAX_BATCH_SIGNALS = 100  # events in one batch, at most


class OutsideSignal(Struct, frozen=True):
    """An event from outside."""

    name: str
    payload: Any = None


class SignalService:
    """Sends signals, and tells their status."""

    def __init__(
        self, inbox: Inbox, requests: Requests, access: Access, *, audit: AuditRecorder
    ) -> None:
        self._inbox = inbox
        self._requests = requests
        self._access = access
        self._audit = audit

    @needs(Permission.OPERATE)
    async def send(
        self,
        identity: Identity,
        execution_id: ExecutionId,
        event: OutsideSignal,
        key: str | None = None,
    ) -> AskedView:
        await self._access.check_tenant(identity, execution_id)
        request = make_request_key(key)
        async with self._audit.record(identity, "execution.signal", execution_id, name=event.name):
            await self._requests.signal(
                execution_id, event.name, request, event.payload, by=identity.name
            )
        return AskedView(execution_id, request, "accepted", None)

    @needs(Permission.OPERATE)
    async def send_batch(
        self,
        identity: Identity,
        execution_id: ExecutionId,
        events: Sequence[OutsideSignal],
        key: str | None = None,
    ) -> AskedView:
        """Send these events in order. A repeat with the same key sends only the missing ones."""
        await self._access.check_tenant(identity, execution_id)
        for number, event in enumerate(events):
            check_signal(event.name, event.payload, f"event {number}")
        request = make_request_key(key)
        names = " ".join(dict.fromkeys(event.name for event in events))
        async with self._audit.record(
            identity, "execution.signal", execution_id, name=names, signals=len(events)
        ):
            for number, event in enumerate(events):
                await self._requests.signal(
                    execution_id,
                    event.name,
                    _make_part_key(request, number),
                    event.payload,
                    by=identity.name,
                )
        return AskedView(execution_id, request, "accepted", None)

    @needs(Permission.READ)
    async def read_signal_status(
        self, identity: Identity, execution_id: ExecutionId, request: str
    ) -> EventStatusView:
        await self._access.check_tenant(identity, execution_id)
        status, seq = await read_request_status(
            self._inbox, execution_id, f"signal:{request}", f"signal:{request}"
        )
        return EventStatusView(execution_id, request, status, seq)

    @needs(Permission.READ)
    async def read_batch_status(
        self, identity: Identity, execution_id: ExecutionId, request: str, count: int
    ) -> BatchStatusView:
        await self._access.check_tenant(identity, execution_id)
        statuses: Counter[RequestStatus] = Counter()
        for number in range(count):
            key = f"signal:{_make_part_key(request, number)}"
            status, _ = await read_request_status(self._inbox, execution_id, key, key)
            statuses[status] += 1
        return BatchStatusView(
            execution_id=execution_id,
            request=request,
            status=_join_statuses(statuses),
            count=count,
            recorded=statuses["recorded"],
            accepted=statuses["accepted"],
            refused=statuses["refused"],
        )


def _join_statuses(statuses: Counter[RequestStatus]) -> RequestStatus:
    """The status of a batch: one that is not recorded yet, then one that was refused, decides."""
    if statuses["accepted"]:
        return "accepted"
    if statuses["refused"]:
        return "refused"
    return "recorded"


def _make_part_key(request: str, number: int) -> str:
    return f"{request}/{number}"
