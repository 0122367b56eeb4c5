"""Who comes in, and when."""

import asyncio

import pytest

from noetl.time_slice import MAX_ADMITTED_PER_TURN, AdmissionGate
from tests.waiting import HANG_LIMIT_S


def test_of_many_a_few_come_in_at_each_turn_in_their_order() -> None:
    async def main() -> None:
        door, inside = AdmissionGate(), list[int]()

        async def come(number: int) -> None:
            await door.wait_for_turn()
            inside.append(number)

        tasks = [asyncio.ensure_future(come(number)) for number in range(50)]
        seen = 0
        while not all(task.done() for task in tasks):
            await asyncio.sleep(0)
            assert len(inside) - seen <= MAX_ADMITTED_PER_TURN
            seen = len(inside)
        assert inside == list(range(50))

    asyncio.run(main())


def test_who_has_gone_takes_nobodys_place() -> None:
    async def main() -> None:
        door = AdmissionGate()
        tasks = [
            asyncio.ensure_future(door.wait_for_turn()) for _ in range(3 * MAX_ADMITTED_PER_TURN)
        ]
        await asyncio.sleep(0)
        for task in tasks[MAX_ADMITTED_PER_TURN:-1]:
            task.cancel()
        await asyncio.wait_for(tasks[-1], HANG_LIMIT_S)
        assert [task for task in tasks if not task.cancelled()] == [
            *tasks[:MAX_ADMITTED_PER_TURN],
            tasks[-1],
        ]

    asyncio.run(main())


def test_who_comes_alone_does_not_wait() -> None:
    async def main() -> None:
        door = AdmissionGate()
        for _ in range(3):
            with pytest.raises(StopIteration):  # over without having waited
                door.wait_for_turn().send(None)
            await asyncio.sleep(0)

    asyncio.run(main())
