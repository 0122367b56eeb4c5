"""Who waits for something to happen here, and the log that tells them. A wake-up is a hint: whoever wakes reads the store, and
looks now and then without one, so a missed wake-up only delays."""

import asyncio
import logging
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from noetl.bus.port import Bus
from noetl.leases.port import Leases
from noetl.log.port import (
    AppendBatch,
    Appended,
    EventLog,
    ExecutionPart,
    Outcome,
    Projection,
    ShardRows,
)
from noetl.model import codec
from noetl.model.envelope import Envelope
from noetl.model.ids import ExecutionId, shard_of
from noetl.model.messages import StoredRef
from noetl.model.reference import parse_uri
from noetl.server.services.rows import RowService

if TYPE_CHECKING:  # a command that only waits here measures nothing
    from noetl.metrics import Metrics

log = logging.getLogger(__name__)

ROWS = "rows"  # any row of any list
ANNOUNCE_EVERY = 0.1  # seconds between hints to other servers
COUNT_EVERY = 2.0  # seconds between looks whether there are any


def events_of(execution_id: ExecutionId) -> str:
    return f"events:{execution_id}"


def row_of(execution_id: ExecutionId) -> str:
    return f"row:{execution_id}"


def logs_of(execution_id: ExecutionId) -> str:
    return f"logs:{execution_id}"


def subject(shard: int) -> str:
    """Hints to other servers: the shard has new events, rows or lines."""
    return f"noetl.events.{shard}"


class Watch:
    def __init__(self) -> None:
        self.woken = asyncio.Event()

    async def changed(self, seconds: float) -> bool:
        """Until there may be something new, or the time is over. What came since the last call counts."""
        try:
            async with asyncio.timeout(seconds):
                await self.woken.wait()
        except TimeoutError:
            return False
        self.woken.clear()
        return True


class LiveUpdates:
    def __init__(self) -> None:
        self._watches: dict[str, dict[Watch, None]] = {}
        self.closing = False

    @contextmanager
    def watch(self, *topics: str) -> Iterator[Watch]:
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
        """Something happened at another server."""
        for topic in list(self._watches):
            _, _, execution_id = topic.partition(":")
            if not execution_id or shard_of(execution_id, count) == shard:
                self.wake((topic,))

    def close(self) -> None:
        """Whoever waits shall end."""
        self.closing = True
        self.wake(list(self._watches))


class ObservedLog:
    """The log of this server. After each commit it says what has changed, and how long that took."""

    def __init__(self, log: EventLog, live: LiveUpdates, metrics: "Metrics", shards: int) -> None:
        self._log = log
        self._shards = shards
        self._live = live
        self.rows: RowService | None = None  # what need not be read from the store
        self._metrics = metrics
        self.touched: set[int] = set()  # shards with something new since other servers were told

    def __getattr__(self, name: str) -> Any:  # everything else is the log's own
        return getattr(self._log, name)

    async def append(self, batch: AppendBatch) -> list[Outcome]:
        began = time.perf_counter()
        outcomes = await self._log.append(batch)
        self._metrics.dispatch_ms.observe((time.perf_counter() - began) * 1000)
        self._metrics.batch_events.observe(sum(len(part.events) for part in batch.parts))
        for part, outcome in zip(batch.parts, outcomes, strict=True):
            if isinstance(outcome, Appended) and part.events:
                self._live.wake((events_of(part.execution_id),))
                self.touched.add(part.shard)
                self._measure(part)
        return outcomes

    def _measure(self, part: ExecutionPart) -> None:
        """Envelopes with a context: the others repeat one without it."""
        for event in part.events:
            result: Envelope | None = getattr(event, "result", None)
            if result is not None and result.context:
                self._metrics.event_result_bytes.observe(len(codec.encode(result)))

    async def put_logs(self, parts: tuple[StoredRef, ...]) -> None:
        await self._log.put_logs(parts)
        executions = {parse_uri(part.reference.uri).execution_id for part in parts}
        self._live.wake(map(logs_of, executions))
        self.touched.update(shard_of(each, self._shards) for each in executions)

    async def project(self, batch: list[ShardRows]) -> list[bool]:
        done = await self._log.project(batch)
        written = [each for each, applied in zip(batch, done, strict=True) if applied and each.rows]
        if written:
            if self.rows is not None:
                self.rows.written(row for each in written for row in each.rows)
            self._live.wake(
                [*(row_of(row.execution_id) for each in written for row in each.rows), ROWS]
            )
            self.touched.update(each.shard for each in written)
        return done

    async def projection(self, execution_id: ExecutionId) -> Projection | None:
        if self.rows is not None and (kept := self.rows.get(execution_id)) is not None:
            return kept
        row = await self._log.projection(execution_id)
        if self.rows is not None and row is not None:
            self.rows.read(row)
        return row


def heard(
    log: EventLog, live: LiveUpdates, metrics: "Metrics", shards: int
) -> tuple[EventLog, ObservedLog]:
    """The same object twice: as the port, which it is by delegation that no type checker sees, and as itself."""
    made = ObservedLog(log, live, metrics, shards)
    return cast(EventLog, made), made


async def announce(bus: Bus, leases: Leases, made: ObservedLog) -> None:
    """Tell other servers while there are any, several changes of a shard at once. For as long as the process lives."""
    while True:
        try:
            if await leases.servers() > 1:
                await _announce(bus, made, COUNT_EVERY)
            else:
                await asyncio.sleep(COUNT_EVERY)
        except Exception:  # a loop that must survive: without it others look by themselves
            log.exception("other servers are not told")
            await asyncio.sleep(COUNT_EVERY)


async def _announce(bus: Bus, made: ObservedLog, seconds: float) -> None:
    for _ in range(round(seconds / ANNOUNCE_EVERY)):
        await asyncio.sleep(ANNOUNCE_EVERY)
        shards, made.touched = made.touched, set()
        for shard in sorted(shards):
            await bus.publish(subject(shard))


async def hear(bus: Bus, live: LiveUpdates, count: int) -> None:
    """Hear of other servers' changes, for as long as the process lives."""
    subjects = {subject(shard): shard for shard in range(count)}
    while True:
        try:
            async for named in bus.subscribe(*subjects):
                live.wake_shard(subjects[named], count)
        except Exception:  # a loop that must survive
            log.exception("the bus is not there")
        await asyncio.sleep(COUNT_EVERY)
