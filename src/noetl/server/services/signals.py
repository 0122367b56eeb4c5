"""Events from outside. Each becomes a signal of its name: kept in order until a `wait` consumes it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from noetl.log.port import EventLog
from noetl.model.identity import Identity
from noetl.model.ids import ExecutionId
from noetl.server.requests import Requests, check_signal
from noetl.server.services.access import Access
from noetl.server.services.requests import Asked, Fate, fate, request_key

MOST = 100  # events in one batch


@dataclass(frozen=True, slots=True)
class Outside:
    name: str
    payload: Any = None


@dataclass(frozen=True, slots=True)
class BatchFate:
    execution_id: ExecutionId
    request: str
    count: int
    recorded: int
    accepted: int
    refused: int

    @property
    def status(self) -> Fate:
        if self.accepted:
            return "accepted"
        return "recorded" if self.recorded == self.count else "refused"


class SignalService:
    def __init__(self, log: EventLog, requests: Requests, access: Access) -> None:
        self._log = log
        self._requests = requests
        self._access = access

    async def send(
        self, identity: Identity, execution_id: ExecutionId, event: Outside, key: str | None = None
    ) -> Asked:
        await self._access.check(identity, execution_id)
        request = request_key(key)
        await self._requests.signal(
            execution_id, event.name, request, event.payload, by=identity.name
        )
        return Asked(execution_id, request, "accepted")

    async def send_batch(
        self,
        identity: Identity,
        execution_id: ExecutionId,
        events: Sequence[Outside],
        key: str | None = None,
    ) -> Asked:
        """In order. A batch that was cut off is sent again with its key: what is there already is known."""
        await self._access.check(identity, execution_id)
        for number, event in enumerate(events):
            check_signal(event.name, event.payload, f"event {number}")
        request = request_key(key)
        for number, event in enumerate(events):
            await self._requests.signal(
                execution_id, event.name, _part(request, number), event.payload, by=identity.name
            )
        return Asked(execution_id, request, "accepted")

    async def status(self, identity: Identity, execution_id: ExecutionId, request: str) -> Asked:
        await self._access.check(identity, execution_id)
        status, seq = await fate(self._log, execution_id, f"signal:{request}", f"signal:{request}")
        return Asked(execution_id, request, status, seq)

    async def batch_status(
        self, identity: Identity, execution_id: ExecutionId, request: str, count: int
    ) -> BatchFate:
        await self._access.check(identity, execution_id)
        keys = [f"signal:{_part(request, number)}" for number in range(count)]
        found = [(await fate(self._log, execution_id, key, key))[0] for key in keys]
        return BatchFate(
            execution_id,
            request,
            count,
            found.count("recorded"),
            found.count("accepted"),
            found.count("refused"),
        )


def _part(request: str, number: int) -> str:
    return f"{request}/{number}"
