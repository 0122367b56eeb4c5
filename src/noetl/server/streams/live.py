"""Live updates: readers watch topics, and an observer of the commits wakes them.

A wake-up is a hint: the reader then reads the store. Readers also read it at an interval, so a
missed wake-up only delays.
"""

import asyncio
import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from noetl.bus.port import Bus
from noetl.leases.port import Leases
from noetl.log.events.port import AppendBatch, Appended, ExecutionPart, Outcome
from noetl.log.projections.port import Projection
from noetl.model import codec
from noetl.model.events import get_result
from noetl.model.ids import ExecutionId, shard_of

if TYPE_CHECKING:  # commands that only wait for updates do not load the metrics
    from noetl.metrics import Metrics

log = logging.getLogger(__name__)

ROWS_TOPIC = "rows"  # the topic for a change of any row
ANNOUNCE_INTERVAL_S = 0.1  # seconds between hints to other servers
SERVER_COUNT_INTERVAL_S = 2.0  # seconds between checks whether there are other servers


def make_events_topic(execution_id: ExecutionId) -> str:
    return f"events:{execution_id}"


def make_row_topic(execution_id: ExecutionId) -> str:
    return f"row:{execution_id}"


def make_logs_topic(execution_id: ExecutionId) -> str:
    return f"logs:{execution_id}"


def make_hint_subject(shard: int) -> str:
    """The bus subject of hints to other servers: the shard has new events, rows or log lines."""
    return f"noetl.events.{shard}"


class Watch:
    """A subscription to topics; wake-ups set it."""

    def __init__(self) -> None:
        self.woken = asyncio.Event()

    async def wait_for_change(self, seconds: float) -> bool:
        """Wait for a wake-up; False if none comes in time. One since the last call counts."""
        try:
            async with asyncio.timeout(seconds):
                await self.woken.wait()
        except TimeoutError:
            return False
        self.woken.clear()
        return True


class LiveUpdates:
    """The watches of this server, by topic."""

    def __init__(self) -> None:
        self._watches: dict[str, dict[Watch, None]] = {}
        self.closing = False

    @contextmanager
    def watch(self, *topics: str) -> Iterator[Watch]:
        """Watch these topics within the context."""
        watch = Watch()
        if self.closing:
            watch.woken.set()
        for topic in topics:
            self._watches.setdefault(topic, {})[watch] = None
        try:
            yield watch
        finally:
            for topic in topics:
                watches = self._watches[topic]
                del watches[watch]
                if not watches:
                    del self._watches[topic]

    def wake(self, topics: Iterable[str]) -> None:
        for topic in topics:
            for watch in self._watches.get(topic, ()):
                watch.woken.set()

    def wake_shard(self, shard: int, count: int) -> None:
        """Wake the watchers of this shard, which has changed at another server."""
        for topic in list(self._watches):
            _, _, execution_id = topic.partition(":")
            if not execution_id or shard_of(execution_id, count) == shard:
                self.wake((topic,))

    def close(self) -> None:
        """Wake all watchers, so that they end."""
        self.closing = True
        self.wake(list(self._watches))


class LiveObserver:
    """Wakes watchers after each commit of this server, and measures the commits."""

    def __init__(self, live: LiveUpdates, metrics: "Metrics", shards: int) -> None:
        self._live = live
        self._metrics = metrics
        self._shards = shards
        self._changed_shards: set[int] = set()

    def observe_append(self, batch: AppendBatch, outcomes: list[Outcome], seconds: float) -> None:
        self._metrics.dispatch_ms.observe(seconds * 1000)
        event_count = sum(len(part.events) for part in batch.parts)
        self._metrics.batch_events.observe(event_count)
        for part, outcome in zip(batch.parts, outcomes, strict=True):
            if isinstance(outcome, Appended) and part.events:
                self._live.wake((make_events_topic(part.execution_id),))
                self._changed_shards.add(part.shard)
                self._measure_results(part)

    def _measure_results(self, part: ExecutionPart) -> None:
        """Measure the envelopes that have a context; the others only repeat one of them."""
        for event in part.events:
            result = get_result(event)
            if result is not None and result.context:
                self._metrics.event_result_bytes.observe(len(codec.encode(result)))

    def observe_rows(self, rows: list[Projection]) -> None:
        self._changed_shards.update(row.shard for row in rows)
        topics = [make_row_topic(row.execution_id) for row in rows]
        self._live.wake([*topics, ROWS_TOPIC])

    def observe_step_logs(self, executions: Iterable[ExecutionId]) -> None:
        for execution_id in executions:
            self._live.wake((make_logs_topic(execution_id),))
            self._changed_shards.add(shard_of(execution_id, self._shards))

    def take_changed_shards(self) -> list[int]:
        """The shards that changed since the last call."""
        shards, self._changed_shards = self._changed_shards, set()
        return sorted(shards)


async def announce_changes(bus: Bus, leases: Leases, observer: LiveObserver) -> None:
    """Send hints about changed shards while there are other servers. Runs until it is cancelled."""
    while True:
        try:
            if await leases.count_servers() > 1:
                await _announce_for(bus, observer, SERVER_COUNT_INTERVAL_S)
            else:
                await asyncio.sleep(SERVER_COUNT_INTERVAL_S)
        except Exception:  # this loop must survive; without hints, other servers poll
            log.exception("other servers are not told")
            await asyncio.sleep(SERVER_COUNT_INTERVAL_S)


async def _announce_for(bus: Bus, observer: LiveObserver, seconds: float) -> None:
    """Send one hint per changed shard and interval, for so many seconds."""
    for _ in range(round(seconds / ANNOUNCE_INTERVAL_S)):
        await asyncio.sleep(ANNOUNCE_INTERVAL_S)
        for shard in observer.take_changed_shards():
            await bus.publish(make_hint_subject(shard))


async def hear_changes(bus: Bus, live: LiveUpdates, count: int) -> None:
    """Wake watchers at hints from other servers. Runs until it is cancelled."""
    shards = {make_hint_subject(shard): shard for shard in range(count)}
    while True:
        try:
            async for named in bus.subscribe(*shards):
                live.wake_shard(shards[named], count)
        except Exception:  # this loop must survive
            log.exception("the bus is not there")
        await asyncio.sleep(SERVER_COUNT_INTERVAL_S)
