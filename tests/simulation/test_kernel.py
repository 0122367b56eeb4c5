"""The kernel by itself, on toy coroutines."""

import asyncio
from random import Random
from typing import Literal

import pytest

from tests.simulation.loop import Killed, Livelock, SimLoop, SimProcess, current


def loop_of(seed: int = 1, order: Literal["process", "any", "fifo"] = "process") -> SimLoop:
    return SimLoop(Random(seed), order)


def test_sleeping_takes_no_real_time() -> None:
    loop = loop_of()
    loop.run_until_complete(asyncio.sleep(86_400))
    assert loop.time() == 86_400


def test_the_seed_decides_the_order_and_repeats_it() -> None:
    def order(seed: int) -> list[int]:
        seen: list[int] = []

        async def say(number: int) -> None:
            await asyncio.sleep(0)
            seen.append(number)

        async def main() -> None:
            await asyncio.gather(*(say(number) for number in range(8)))

        loop_of(seed, "any").run_until_complete(main())
        return seen

    orders = {tuple(order(seed)) for seed in range(20)}
    assert len(orders) > 10
    assert order(7) == order(7)


def test_processes_interleave_but_each_keeps_its_own_order() -> None:
    orders = set()
    for seed in range(20):
        loop, seen = loop_of(seed), list[str]()

        async def say(seen: list[str], name: str) -> None:
            seen.append(name)

        processes = SimProcess("a"), SimProcess("b")
        for number in range(3):
            for process in processes:
                loop.spawn(process, say(seen, f"{process.name}{number}"))
        loop.run_until(1)
        assert [name for name in seen if name[0] == "a"] == ["a0", "a1", "a2"]
        assert [name for name in seen if name[0] == "b"] == ["b0", "b1", "b2"]
        orders.add(tuple(seen))
    assert len(orders) > 5


def test_a_killed_process_never_runs_again_and_says_nothing() -> None:
    loop, process, seen = loop_of(), SimProcess("a"), []

    async def work() -> None:
        try:
            while True:
                await asyncio.sleep(1)
                process.check()
                seen.append(loop.time())
        finally:
            process.check()
            seen.append(-1.0)

    loop.spawn(process, work())
    loop.call_outside(2.5, loop.kill, process)
    loop.run_until(10)
    loop.dispose()
    assert seen == [1, 2]


def test_a_process_that_kills_itself_stops_where_it_is() -> None:
    loop, process, seen = loop_of(), SimProcess("a"), []

    async def work() -> None:
        assert current() is process
        seen.append("before")
        loop.kill(process)
        raise Killed

    async def waits(task: "asyncio.Task[None]") -> None:
        await task
        seen.append("never")

    task = loop.spawn(process, work())
    loop.spawn(process, waits(task))
    loop.run_until(10)
    loop.dispose()
    assert seen == ["before"]
    assert loop.errors == []


def test_tasks_made_by_a_process_belong_to_it() -> None:
    loop, process, seen = loop_of(), SimProcess("a"), []

    async def child() -> None:
        await asyncio.sleep(5)
        seen.append("never")

    async def parent() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(child())
            group.create_task(child())

    loop.spawn(process, parent())
    loop.call_outside(1, loop.kill, process)
    loop.run_until(10)
    loop.dispose()
    assert seen == []


def test_a_paused_process_wakes_after_its_timers() -> None:
    loop, process, seen = loop_of(), SimProcess("a"), []

    async def work() -> None:
        for _ in range(3):
            await asyncio.sleep(1)
            seen.append(loop.time())

    loop.spawn(process, work())
    loop.call_outside(1.5, loop.pause, process, 6.0)
    loop.run_until(20)
    assert seen == [1, 7.5, 8.5]


def test_timeouts_and_cancellation_work() -> None:
    loop, seen = loop_of(), []

    async def sleep_long() -> None:
        try:
            await asyncio.sleep(100)
        finally:
            seen.append("stopped")

    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3):
                await sleep_long()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(sleep_long(), 2)

    loop.run_until_complete(main())
    assert (loop.time(), seen) == (5, ["stopped", "stopped"])


def test_queues_locks_and_events_work_in_any_order() -> None:
    for seed in range(30):
        loop = loop_of(seed, "any")

        async def main() -> list[int]:
            queue: asyncio.Queue[int] = asyncio.Queue(2)
            lock, out = asyncio.Lock(), []

            async def take() -> None:
                for _ in range(5):
                    item = await queue.get()
                    async with lock:
                        await asyncio.sleep(0.01)
                        out.append(item)

            async def give() -> None:
                for number in range(10):
                    await queue.put(number)

            await asyncio.wait_for(asyncio.gather(take(), take(), give()), 5)
            return sorted(out)

        assert loop.run_until_complete(main()) == list(range(10))


def test_spinning_without_time_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.simulation.loop.MAX_STEPS_AT_ONE_MOMENT", 1000)

    async def spin() -> None:
        while True:  # noqa: ASYNC110  # spinning is what it is for
            await asyncio.sleep(0)

    with pytest.raises(Livelock):
        loop_of().run_until_complete(spin())


def test_waiting_for_nothing_is_noticed() -> None:
    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(Livelock):
        loop_of().run_until_complete(main())


def test_threads_are_refused() -> None:
    async def main() -> None:
        await asyncio.to_thread(print)

    with pytest.raises(RuntimeError, match="threads"):
        loop_of().run_until_complete(main())
