"""The structs that answers about events from outside have."""

from typing import Annotated

from noetl.server.executions.views import RequestStatus
from noetl.server.http.structs import View, describe


class TakenView(View, frozen=True):
    execution_id: str
    request: Annotated[str, describe("its key: send it as Idempotency-Key to repeat")]
    status: RequestStatus
    status_url: str


class EventStatusView(View, frozen=True):
    execution_id: str
    request: str
    status: Annotated[
        RequestStatus,
        describe("accepted: not recorded yet; refused: unknown, or the execution did not take it"),
    ]
    seq: int | None


class BatchStatusView(View, frozen=True):
    execution_id: str
    request: str
    status: RequestStatus
    count: int
    recorded: int
    accepted: int
    refused: int
