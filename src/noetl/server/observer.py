"""The observer of a server's commits: it is told what was written, right after it was written."""

from collections.abc import Iterable
from typing import Protocol

from noetl.log.events.port import AppendBatch, Outcome
from noetl.log.projections.port import Projection
from noetl.model.ids import ExecutionId


class CommitObserver(Protocol):
    """Its methods run between a commit and the answer to it, so they must be quick."""

    def observe_append(
        self, batch: AppendBatch, outcomes: list[Outcome], seconds: float
    ) -> None: ...

    def observe_rows(self, rows: list[Projection]) -> None: ...
    def observe_step_logs(self, executions: Iterable[ExecutionId]) -> None: ...


class NoObserver:
    """For a server that nobody watches."""

    def observe_append(self, batch: AppendBatch, outcomes: list[Outcome], seconds: float) -> None:
        pass

    def observe_rows(self, rows: list[Projection]) -> None:
        pass

    def observe_step_logs(self, executions: Iterable[ExecutionId]) -> None:
        pass
