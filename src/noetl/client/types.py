"""The answers of a client.

They are read from the JSON of the HTTP API. Fields that a newer server adds are ignored; fields
that an older server does not have take their defaults.
"""

from datetime import datetime

from msgspec import Struct

from noetl.client.errors import ExecutionFailed
from noetl.client.rows import Row

QUARANTINED = "quarantined"


class RegistrationInfo(Struct, frozen=True):
    """A playbook that was registered. `created` is False if the latest version had this text."""

    path: str
    version: int
    hash: str
    created: bool
    findings: list[Row] = []


class PlaybookInfo(Struct, frozen=True):
    """A version of a playbook in the catalog. Lists leave out its text."""

    path: str
    version: int
    hash: str
    content: str | None = None


class FailureInfo(Struct, frozen=True):
    """Why an execution has failed, and where."""

    code: str
    message: str
    kind: str = "error"
    step: str | None = None
    retryable: bool = False
    detail: Row = {}
    execution_id: str | None = None  # of the execution that failed first: a child, perhaps
    item: int | None = None  # index of the first failed item, if a loop failed


class StepInfo(Struct, frozen=True):
    status: str
    runs: int = 0
    started_at: datetime | None = None
    ended_at: datetime | None = None
    seconds: float | None = None
    loop: Row | None = None  # counts of a loop's items


class ExecutionInfo(Struct, frozen=True):
    """An execution, as lists show it."""

    execution_id: str
    path: str
    status: str
    started_at: datetime | None = None
    updated_at: datetime | None = None
    ended_at: datetime | None = None
    parent: str | None = None
    retry_of: str | None = None
    error: str | None = None
    step_count: int = 0
    recovered: int = 0
    last_seq: int = 0

    @property
    def has_ended(self) -> bool:
        return self.ended_at is not None


class ExecutionReport(ExecutionInfo, frozen=True):
    """An execution with its steps, its workload, and the reason of its failure."""

    version: int | None = None
    workload: Row | None = None  # None: too large to be shown
    steps: dict[str, StepInfo] = {}
    failure: FailureInfo | None = None
    cause: FailureInfo | None = None  # the first failure, if a child or an item of a loop failed

    def raise_if_failed(self) -> None:
        """Raise `ExecutionFailed` if it has ended in another way than completed."""
        if self.status == "completed" or not (self.has_ended or self.status == QUARANTINED):
            return
        first = self.cause or self.failure
        message = f"execution {self.execution_id} of {self.path} is {self.status}"
        if first is not None:
            where = f" in step {first.step}" if first.step else ""
            message += f"{where}: {first.code} {first.message}"
        raise ExecutionFailed(
            message,
            hint=f"noetl exec get {self.execution_id} shows its steps",
            execution_id=self.execution_id,
            status=self.status,
            step=first and first.step,
            failure_code=first and first.code,
        )


class EventInfo(Struct, frozen=True):
    """An event of an execution. `data` has the fields of its type: docs/events.md lists them."""

    seq: int
    type: str
    at: datetime
    data: Row


class LogLine(Struct, frozen=True):
    """A line that a step has printed. `stream` is stdout, stderr, or noetl for our own remarks."""

    step: str
    line: str
    stream: str
    at: datetime | None = None
    task: str = ""
    item: int | None = None  # index of the item, in a loop
    attempt: int | None = None
