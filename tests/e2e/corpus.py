"""Playbooks on the full stack: every case below `playbooks/` in one process, with a server and a worker as `noetl dev` wires
them, on a real Postgres, with real Python children and the API of `tests/api`.

A case is one file of several YAML documents:

    the playbook            registered as `<area>/<name>`, in any spelling
    given: {…}              optional: payload · credentials {name: {kind, data}}, where {api} is its address · env {name: value} ·
                            signals [{name, payload, when: [steps]}], each sent once these steps wait
    expect: {…}             status · recovered (0 unless stated) · error {code, step, message, …} · ctx ·
                            steps {name: status, or {status, runs} when it ran more than once} ·
                            result {step.path.into.its.value: value} · path (see `paths.py`) ·
                            delays {step: [microseconds before each next try]} ·
                            hidden [texts that no event and no result may show] · xfail (why it does not hold yet)
    further playbooks       children, registered at their own `metadata.path`

Every payload also has `api`, the address of the API, and `place`, a directory of the case's own. The credential `tables` is a
database for the tables of all cases.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import yaml

from noetl.cli.story import Story
from noetl.model import codec
from noetl.model import events as e
from noetl.model.identity import LOCAL_IDENTITY
from noetl.model.ids import ExecutionId, call_id
from noetl.pipeline.scope.results import ResultReader
from noetl.runtime.node import Node
from noetl.runtime.server import open_server
from noetl.runtime.server_with_worker import run_server_and_worker
from noetl.runtime.stores import open_store
from noetl.server.signals.service import OutsideSignal
from noetl.settings import HomeSettings, StorageSettings, read_settings
from tests.waiting import HANG_LIMIT_S

PLAYBOOKS = Path(__file__).parent / "playbooks"
TOGETHER = 12  # executions under way at once
PARTS = re.compile(r"[^.\[\]]+")


@dataclass(frozen=True)
class CorpusCase:
    name: str
    playbook: str
    given: dict[str, Any]
    expect: dict[str, Any]
    children: tuple[str, ...]


def read_case(file: Path) -> CorpusCase:
    playbook, *others = re.split(r"(?m)^---\n", file.read_text())
    read = [yaml.safe_load(other) for other in others]
    stated = next(document for document in read if "expect" in document)
    children = tuple(
        other for other, document in zip(others, read, strict=True) if "workflow" in document
    )
    name = str(file.relative_to(PLAYBOOKS).with_suffix(""))
    return CorpusCase(name, playbook, stated.get("given", {}), stated["expect"], children)


def list_cases() -> list[CorpusCase]:
    return [read_case(file) for file in sorted(PLAYBOOKS.rglob("*.yaml"))]


@dataclass
class Outcome:
    """How one execution went."""

    story: Story
    events: list[e.Event] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)

    @property
    def error(self) -> dict[str, Any] | None:
        failure = self.story.failure
        known = (
            {}
            if failure is None
            else {**msgspec.to_builtins(failure), "step": self.story.state.failed_step}
        )
        return known or None

    @property
    def steps(self) -> dict[str, Any]:
        return {
            name: {"status": status, "runs": runs}
            for name, (status, runs, _) in self.story.list_steps().items()
        }

    def value(self, path: str) -> Any:
        """`fetch.data.items[0]`: the value of a step, and the way into it."""
        step, *into = PARTS.findall(path)
        found = self.values[step]
        for part in into:
            found = found[int(part) if isinstance(found, list) else part]
        return found

    def delays(self, step: str) -> list[int]:
        return [
            event.delay
            for event in self.events
            if isinstance(event, e.RetryStarted) and event.step == step
        ]

    @property
    def readable_bytes(self) -> bytes:
        """Everything of it that somebody may read."""
        return b"".join(codec.encode(event) for event in self.events) + msgspec.json.encode(
            self.values
        )


class Signals:
    """What is sent from outside, once the steps wait that it is meant for."""

    def __init__(self, stated: list[dict[str, Any]]) -> None:
        self._left = stated
        self._waiting: set[str] = set()
        self._calls: dict[
            str, str
        ] = {}  # steps that asked for a child: they wait once it has started

    def take_due(self, events: list[e.Event]) -> list[tuple[str, Any]]:
        for event in events:
            match event:
                case e.CommandParked(reason="child"):
                    self._calls[call_id(event.command_id, event.task, 1)] = event.step
                case e.CommandParked():
                    self._waiting.add(event.step)
                case e.ChildStarted() if event.call in self._calls:
                    self._waiting.add(self._calls[event.call])
        due = [signal for signal in self._left if self._waiting >= set(signal["when"])]
        self._left = [signal for signal in self._left if signal not in due]
        return [(signal["name"], signal.get("payload")) for signal in due]


# ---- the cluster ---------------------------------------------------------------------------------------------------------


@dataclass
class CorpusCluster:
    """A server and a worker in this process, as `noetl dev` wires them, and the cases that run on them."""

    node: Node
    payloads: ResultReader
    api: str
    folder: Path

    async def play(self, case: CorpusCase) -> Outcome:
        for name, credential in case.given.get("credentials", {}).items():
            data = {
                field: value.replace("{api}", self.api) if isinstance(value, str) else value
                for field, value in credential["data"].items()
            }
            await self.node.services.credentials.add(LOCAL_IDENTITY, name, credential["kind"], data)
        for child in case.children:
            await self.node.services.catalog.register(LOCAL_IDENTITY, child)
        await self.node.services.catalog.register(LOCAL_IDENTITY, case.playbook, case.name)
        place = self.folder / case.name
        place.mkdir(parents=True)
        payload = {**case.given.get("payload", {}), "api": self.api, "place": str(place)}
        execution = await self.node.server.requests.start(case.name, payload=payload)
        async with asyncio.timeout(HANG_LIMIT_S):
            return await self._follow_execution(execution, case)

    async def _follow_execution(self, execution: ExecutionId, case: CorpusCase) -> Outcome:
        story, signals = Story(execution), Signals(case.given.get("signals", []))
        outcome = Outcome(story)
        async for page in self.node.services.streams.follow_events(LOCAL_IDENTITY, execution):
            if isinstance(page, list):
                story.add_events(page)
                outcome.events += story.new_events
                for name, payload in signals.take_due(story.new_events):
                    await self.node.services.signals.send(
                        LOCAL_IDENTITY, execution, OutsideSignal(name, payload)
                    )
        await story.read_results(self._resolve)
        for name, record in story.state.steps.items():
            reference = record.result.reference if record.result is not None else None
            outcome.values[name] = None if reference is None else await self._resolve(reference)
        return outcome

    async def _resolve(self, reference: Any) -> Any:
        return await self.payloads.resolve(reference)


@asynccontextmanager
async def run_cluster(tables: str, api: str) -> AsyncIterator[CorpusCluster]:
    """Over the home and the database of the environment."""
    stop = asyncio.Event()
    async with open_server("127.0.0.1", 0) as opened:
        node = opened.node
        await node.server.keeper.run_once()  # a node number, and shards, before the first request
        running = asyncio.ensure_future(run_server_and_worker(opened, wait_for(stop)))
        try:
            await node.services.credentials.add(
                LOCAL_IDENTITY, "tables", "postgres", {"dsn": tables}
            )
            home = read_settings(HomeSettings).home_path
            store = open_store(node.server, home, read_settings(StorageSettings))
            payloads = ResultReader(store, node.server.list_manifest_parts)
            yield CorpusCluster(node, payloads, api, home / "places")
        finally:
            stop.set()
            await running


async def wait_for(event: asyncio.Event) -> None:
    await event.wait()


async def play(
    wanted: Sequence[CorpusCase], tables: str, api: str
) -> dict[str, Outcome | BaseException]:
    """How each went; or why that is not known."""
    limit = asyncio.Semaphore(TOGETHER)

    async with run_cluster(tables, api) as cluster:

        async def one(case: CorpusCase) -> Outcome:
            async with limit:
                return await cluster.play(case)

        outcomes = await asyncio.gather(*map(one, wanted), return_exceptions=True)
    return {case.name: outcome for case, outcome in zip(wanted, outcomes, strict=True)}
