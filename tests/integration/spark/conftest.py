"""A Spark server that all these tests share, and calls of the spark tool."""

import asyncio
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow.parquet as pq
import pytest

from noetl.model.ids import ExecutionId
from noetl.results.formats.tables import EncodedTable, TableOptions, TableParts
from noetl.results.staging import Staging
from noetl.spark.step.tool import SparkTool, SparkToolSettings
from noetl.tools.port import Call, CallIdentity, Failed, Outcome, Success
from tests.spark import spark_url
from tests.unit.tools.calls import Scope
from tests.waiting import HANG_LIMIT_S

__all__ = ["spark_url"]


@pytest.fixture(scope="session")
def loop() -> Iterator[asyncio.Runner]:
    """One for all: the processes of a tool belong to a loop."""
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="session")
def tool(
    loop: asyncio.Runner, spark_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SparkTool]:
    made = SparkTool(SparkToolSettings(tmp_path_factory.mktemp("home"), spark_url))
    yield made
    loop.run(made.close())


@dataclass(frozen=True)
class Runner:
    """The tool, for calls that are each their own unless they say otherwise."""

    tool: SparkTool
    loop: asyncio.Runner
    folder: Path

    def call(
        self, config: dict[str, Any], scope: dict[str, Any] | None = None, **more: Any
    ) -> Call:
        tables = TableOptions(Staging(self.folder / "results" / "staging"))
        given = {"input": {}, "key": uuid4().hex, "identity": identity(), "tables": tables}
        return Call(config=config, rendering=Scope(scope or {}), **{**given, **more})

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run(asyncio.wait_for(work, HANG_LIMIT_S))

    def __call__(
        self, config: dict[str, Any], scope: dict[str, Any] | None = None, **more: Any
    ) -> Outcome:
        outcome: Outcome = self.run(self.tool.run(self.call(config, scope, **more)))
        return outcome

    def rows(
        self, config: dict[str, Any], scope: dict[str, Any] | None = None, **more: Any
    ) -> list[dict[str, Any]]:
        return rows_of(self(config, scope, **more))

    def failure(
        self, config: dict[str, Any], scope: dict[str, Any] | None = None, **more: Any
    ) -> Any:
        outcome = self(config, scope, **more)
        assert isinstance(outcome, Failed), outcome
        return outcome.failure


@pytest.fixture
def spark(tool: SparkTool, loop: asyncio.Runner, tmp_path: Path) -> Runner:
    return Runner(tool, loop, tmp_path)


def identity(**more: Any) -> CallIdentity:
    return CallIdentity(ExecutionId("1"), "totals", "t", **more)


def rows_of(outcome: Outcome) -> list[dict[str, Any]]:
    assert isinstance(outcome, Success), outcome
    return of(outcome.value)


def of(value: Any) -> list[dict[str, Any]]:
    try:
        if isinstance(value, EncodedTable):
            return list(value.value()["rows"])
        assert isinstance(value, TableParts)
        return [
            row for table in value.tables for row in pq.read_table(table.staged.path).to_pylist()
        ]
    finally:
        value.close()
