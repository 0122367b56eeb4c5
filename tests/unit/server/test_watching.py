"""Watching an execution: one read for all watchers, one message in hand for each, a whole page for the slow."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import msgspec
import pytest

from noetl.engine.execution_fold import ExecutionFold, make_empty_fold
from noetl.model.events import Event
from noetl.model.ids import DEFAULT_TENANT, ExecutionId, Tenant
from noetl.server.executions.details import make_children_view
from noetl.server.inspection import watching
from noetl.server.inspection.page import PageFacts
from noetl.server.inspection.watching import Watches, WatchMessage
from noetl.server.streams.live import LiveUpdates, make_events_topic
from tests.play import EXECUTION, Play, workflow

ID = ExecutionId(EXECUTION)
CHAIN = "\n".join(
    f"- {{step: s{n}, tool: {{kind: python, code: 'pass'}}, next: s{n + 1}}}" for n in range(8)
)
STEPS = f"{CHAIN}\n- {{step: s8, tool: {{kind: python, code: 'pass'}}}}"


class PlayedExecution:
    """An execution that goes on when a test says so, and counts how often it is read."""

    def __init__(self, live: LiveUpdates) -> None:
        self._live = live
        self.play = Play(workflow(STEPS)).start()
        self.fold = make_empty_fold(ID)
        self.reads = 0
        self._fold(self.play.log)

    def _fold(self, events: list[Event]) -> None:
        for event in events:
            self.fold.fold_event(self.fold.seq + 1, event)

    def go_on(self) -> None:
        """One more step ends."""
        known = len(self.play.log)
        self.play.now += 1_000
        self.play.complete(self.play.list_ready()[0], 1)
        self._fold(self.play.log[known:])
        self._live.wake([make_events_topic(ID)])

    async def read_page(
        self, tenant: Tenant, execution_id: ExecutionId
    ) -> tuple[ExecutionFold, PageFacts]:
        self.reads += 1
        await asyncio.sleep(0)
        facts = PageFacts(
            queued={},
            cause=None,
            line=None,
            children=make_children_view({}, []),
            retried_by=[],
            workload_keys=[],
            events=self.fold.state.events,
            last_seq=self.fold.seq,
            is_live=True,
        )
        return self.fold, facts


async def take(messages: AsyncGenerator[WatchMessage | None, None]) -> WatchMessage:
    async for message in messages:
        if message is not None:
            return message
    raise AssertionError("the stream has ended")


def decode(message: WatchMessage) -> dict[str, Any]:
    return dict(msgspec.json.decode(message.data))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "MIN_MESSAGE_INTERVAL_S", 0.0)


def test_watchers_share_reads_and_messages() -> None:
    async def check() -> None:
        live = LiveUpdates()
        played = PlayedExecution(live)
        watches = Watches(played.read_page, live)
        streams = [watches.follow(DEFAULT_TENANT, ID, 0) for _ in range(50)]
        pages = await asyncio.gather(*map(take, streams))
        assert {page.kind for page in pages} == {"view"}
        reads = played.reads
        waiting = [asyncio.ensure_future(take(stream)) for stream in streams]
        await asyncio.sleep(0)
        played.go_on()
        changes = await asyncio.gather(*waiting)
        assert {change.kind for change in changes} == {"delta"}
        assert len({id(change.data) for change in changes}) == 1
        assert played.reads - reads <= 2
        assert set(decode(changes[0])["steps"]) == {"s0", "s1"}
        for stream in streams:
            await stream.aclose()
        assert not watches._watched

    asyncio.run(check())


def test_slow_watcher_gets_a_whole_page_and_holds_one_message() -> None:
    async def check() -> None:
        live = LiveUpdates()
        played = PlayedExecution(live)
        watches = Watches(played.read_page, live)
        slow, fast = (watches.follow(DEFAULT_TENANT, ID, 0) for _ in range(2))
        await take(slow)
        await take(fast)
        for _ in range(3):
            played.go_on()
            assert (await take(fast)).kind == "delta"
        message = await take(slow)
        assert message.kind == "view"
        assert message.seq == played.fold.seq
        played.go_on()
        assert (await take(slow)).kind == "delta"
        await slow.aclose()
        await fast.aclose()

    asyncio.run(check())


def test_stream_ends_with_the_execution() -> None:
    async def check() -> None:
        live = LiveUpdates()
        played = PlayedExecution(live)
        watches = Watches(played.read_page, live)
        kinds: list[str] = []
        seqs: list[int] = []
        pages: list[dict[str, Any]] = []
        async for message in watches.follow(DEFAULT_TENANT, ID, 0):
            assert message is not None
            kinds.append(message.kind)
            seqs.append(message.seq)
            if message.kind == "view":
                pages.append(decode(message))
            if played.play.list_ready():
                played.go_on()
        assert played.play.state.status == "completed"
        assert (kinds[0], kinds[-2], kinds[-1]) == ("view", "view", "end")
        assert pages[-1]["result_step"] == "s8"
        assert seqs == sorted(seqs)
        assert seqs[-1] == played.fold.seq

    asyncio.run(check())


def test_change_that_is_large_is_sent_as_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check() -> None:
        live = LiveUpdates()
        played = PlayedExecution(live)
        stream = Watches(played.read_page, live).follow(DEFAULT_TENANT, ID, 0)
        await take(stream)
        played.go_on()
        assert (await take(stream)).kind == "view"
        await stream.aclose()

    monkeypatch.setattr(watching, "MAX_CHANGE_BYTES", 10)
    asyncio.run(check())
