"""Folds of long executions: from a snapshot and one page of the log, shared and advanced by what is new."""

import asyncio
from collections import Counter
from typing import Any

import pytest
from msgspec.structs import replace

from noetl.engine.bands import encode_bands
from noetl.engine.execution_fold import ExecutionFold, compute_fold_shape, make_empty_fold
from noetl.log.memory import make_memory_stores
from noetl.log.tables import MemoryDatabase
from noetl.model import codec
from noetl.model.commands import Command
from noetl.model.errors import InvalidInput, StoreUnavailable
from noetl.model.events import Event
from noetl.model.ids import ExecutionId
from noetl.server.duties.snapshots import MIN_LONG_EVENTS, SnapshotWriter
from noetl.server.inspection import folds as folds_module
from noetl.server.inspection.folds import ExecutionFolds
from noetl.shard_rows import make_shard_rows
from tests.play import EXECUTION, Play, workflow
from tests.unit.server.cluster import SteppedClock

ID = ExecutionId(EXECUTION)
LOOP = """
- step: score
  loop: {in: "{{ range(0, 1300) }}", iterator: item, spec: {mode: parallel, chunk: 1, max_in_flight: 4}}
  tool: {kind: python, code: "result = 1"}
"""


class CountingPort:
    """A port that counts its calls and what they return."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.calls: Counter[str] = Counter()
        self.returned: Counter[str] = Counter()
        self.error: Exception | None = None

    def __getattr__(self, name: str) -> Any:
        async def call(*args: Any, **keywords: Any) -> Any:
            self.calls[name] += 1
            await asyncio.sleep(0)
            if self.error is not None and name.startswith("put"):
                raise self.error
            answer = await getattr(self._inner, name)(*args, **keywords)
            if isinstance(answer, list):
                self.returned[name] += len(answer)
            return answer

        return call


class LongExecution:
    """An execution with the events of a long loop in a memory log."""

    def __init__(self, events: list[Event]) -> None:
        self.database = MemoryDatabase(make_shard_rows(1), SteppedClock())
        stores = make_memory_stores(self.database)
        self.log = CountingPort(stores.log)
        self.snapshots = CountingPort(stores.snapshots)
        self.events = events
        self.append(events)

    def append(self, events: list[Event], execution_id: ExecutionId = ID) -> None:
        rows = [(e.key, codec.encode(e)) for e in events]
        self.database.append(execution_id, rows, ended=False)

    def make_folds(self) -> ExecutionFolds:
        return ExecutionFolds(self.log, self.snapshots)  # type: ignore[arg-type]  # ports that count

    def fold_directly(self, count: int) -> ExecutionFold:
        fold = make_empty_fold(ID)
        for seq, event in enumerate(self.events[:count], 1):
            fold.fold_event(seq, event)
        return fold


@pytest.fixture(scope="module")
def log() -> list[Event]:
    play = Play(workflow(LOOP)).start()

    def answer(command: Command) -> Any:
        play.now += 1_000
        return 1

    play.run(answer)
    assert play.state.status == "completed"
    assert len(play.log) > 2 * 1_000
    return play.log


def assert_same(fold: ExecutionFold, expected: ExecutionFold) -> None:
    assert fold.seq == expected.seq
    assert fold.state == expected.state
    assert encode_bands(fold.bands) == encode_bands(expected.bands)


def test_state_at_any_event_needs_one_snapshot_and_one_page(log: list[Event]) -> None:
    async def check() -> None:
        long = LongExecution(log)
        await long.make_folds().read_newest(ID)  # stores the snapshots
        assert long.snapshots.calls["put_snapshots"] >= 1
        for at in (1, 7, 999, 1_000, 1_001, 1_777, len(log) - 1, len(log)):
            long.log.calls.clear()
            long.log.returned.clear()
            fold = await long.make_folds().read_at(ID, at)
            assert_same(fold, long.fold_directly(at))
            assert sum(long.log.calls.values()) <= 1, at
            assert sum(long.log.returned.values()) <= 1_000, at

    asyncio.run(check())


def test_state_after_the_last_event_is_the_newest(log: list[Event]) -> None:
    async def check() -> None:
        long = LongExecution(log)
        assert_same(await long.make_folds().read_at(ID, 10**9), long.fold_directly(len(log)))
        with pytest.raises(InvalidInput):
            await long.make_folds().read_at(ID, 0)

    asyncio.run(check())


def test_newest_fold_is_advanced_by_what_is_new_and_shared(log: list[Event]) -> None:
    async def check() -> None:
        long = LongExecution(log[:1_500])
        folds = long.make_folds()
        await asyncio.gather(*(folds.read_newest(ID) for _ in range(20)))
        assert long.log.returned["read_events"] == 1_500
        long.append(log[1_500:1_510])
        long.events = log[:1_510]
        fold = await folds.read_newest(ID)
        assert long.log.returned["read_events"] == 1_510
        assert_same(fold, long.fold_directly(1_510))

    asyncio.run(check())


def test_snapshots_that_cannot_be_stored_are_no_error(log: list[Event]) -> None:
    async def check() -> None:
        long = LongExecution(log)
        long.snapshots.error = StoreUnavailable("away")
        assert_same(await long.make_folds().read_newest(ID), long.fold_directly(len(log)))

    asyncio.run(check())


def test_snapshots_of_another_shape_are_ignored(
    log: list[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def check() -> None:
        long = LongExecution(log)
        monkeypatch.setattr(folds_module, "compute_fold_shape", lambda: "older")
        await long.make_folds().read_newest(ID)
        monkeypatch.setattr(folds_module, "compute_fold_shape", compute_fold_shape)
        long.log.returned.clear()
        assert_same(await long.make_folds().read_at(ID, 1_500), long.fold_directly(1_500))
        assert sum(long.log.returned.values()) == 1_500

    asyncio.run(check())


def test_numbers_of_events_are_found_from_snapshots(log: list[Event]) -> None:
    async def check() -> None:
        long = LongExecution(log)
        folds = long.make_folds()
        wanted = [1, 2, 999, 1_000, 1_001, 1_003, 2_000, 2_400]
        assert await folds.find_numbers(ID, wanted) == wanted
        await folds.read_newest(ID)
        assert await folds.find_numbers(ID, wanted) == wanted
        assert await folds.find_numbers(ID, []) == []

    asyncio.run(check())


def test_events_are_found_by_their_number_from_snapshots(log: list[Event]) -> None:
    async def check() -> None:
        long = LongExecution(log[:10])
        long.append(log[:10], ExecutionId("8"))  # so sequence numbers have a gap
        long.append(log[10:])
        folds = long.make_folds()
        wanted = [1, 10, 11, 999, 1_000, 1_001, 2_400, len(log)]
        seqs = [1, 10, 21, 1_009, 1_010, 1_011, 2_410, len(log) + 10]
        assert [await folds.find_seq(ID, number) for number in wanted] == seqs
        await folds.read_newest(ID)
        long.log.returned.clear()
        assert [await folds.find_seq(ID, number) for number in wanted] == seqs
        assert long.log.returned["read_events"] < 1_000 * len(wanted)
        with pytest.raises(InvalidInput, match=f"no event 999999: it has {len(log)}"):
            await folds.find_seq(ID, 999_999)

    asyncio.run(check())


class LongStates:
    """Executions in the memory of a server, as the duty asks for them."""

    def __init__(self, *counts: tuple[ExecutionId, int]) -> None:
        self.counts = list(counts)

    def list_long(self, min_events: int) -> list[tuple[ExecutionId, int]]:
        return [(id_, events) for id_, events in self.counts if events >= min_events]


def test_duty_stores_snapshots_of_long_executions_while_the_server_is_idle(
    log: list[Event],
) -> None:
    async def check() -> None:
        long = LongExecution(log)
        states: Any = LongStates((ID, MIN_LONG_EVENTS - 1))
        is_idle = [False]
        duty = SnapshotWriter(states, long.make_folds(), lambda: is_idle[0])
        is_idle[0] = True
        assert not (await duty.run_once()).done
        states.counts = [(ID, MIN_LONG_EVENTS)]
        is_idle[0] = False
        assert not (await duty.run_once()).done
        is_idle[0] = True
        assert (await duty.run_once()).has_more
        assert await long.snapshots.read_snapshot(ID, compute_fold_shape(), 10**9) is not None

    asyncio.run(check())


def test_large_states_are_stored_less_often() -> None:
    small = make_empty_fold(ID)
    small.state = replace(small.state, events=1_000)
    large = make_empty_fold(ID)
    large.state = replace(large.state, events=1_000, ctx={"text": "x" * 20_000})
    assert small.is_at_mark
    assert small.encode_snapshot() is not None
    assert large.is_at_mark
    assert large.encode_snapshot() is None
    large.state = replace(large.state, events=4_000)
    assert large.encode_snapshot() is not None
