"""Code in a thread that ends when its caller's time is up."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from noetl.spark.tasks.inline_python import InlinePython
from noetl.spark.tasks.interrupts import run_interruptible
from noetl.tools.port import discard_log
from tests.waiting import wait_until

FOREVER = """
from pathlib import Path
Path(folder, "begun").touch()
while True:
    pass
"""
CATCHES_ALL = """
from pathlib import Path
try:
    Path(folder, "begun").touch()
    while True:
        pass
except BaseException:
    Path(folder, "caught").touch()
    while True:
        pass
"""


class EndlessCall:
    """A function that computes until it is interrupted."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.ended = False

    def __call__(self) -> str:
        try:
            self.begun.set()
            while True:
                pass
        finally:
            self.ended = True


async def _cancel_when(begun: Callable[[], bool], work: Any) -> None:
    task = asyncio.ensure_future(work)
    await wait_until(lambda: asyncio.to_thread(begun))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_the_result_is_that_of_the_function() -> None:
    assert asyncio.run(run_interruptible(lambda: 3)) == 3


def test_a_function_whose_caller_is_cancelled_has_ended() -> None:
    function = EndlessCall()
    asyncio.run(_cancel_when(function.begun.is_set, run_interruptible(function)))
    assert function.ended


def test_the_thread_is_good_for_other_work_after_an_interrupt() -> None:
    async def run() -> list[int]:
        for _ in range(5):
            function = EndlessCall()
            await _cancel_when(function.begun.is_set, run_interruptible(function))
        return [await run_interruptible(lambda number=number: number) for number in range(100)]  # type: ignore[misc]

    assert asyncio.run(run()) == list(range(100))


def test_an_error_of_the_function_reaches_its_caller() -> None:
    def raise_error() -> int:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        asyncio.run(run_interruptible(raise_error))


@pytest.mark.parametrize(
    ("code", "file"), [(FOREVER, "begun"), (CATCHES_ALL, "caught")], ids=["endless", "catches all"]
)
def test_code_of_a_task_ends_with_its_caller(tmp_path: Any, code: str, file: str) -> None:
    work = InlinePython().run_many(
        {"code": code}, [{"folder": str(tmp_path)}], lambda nth: discard_log, lambda *outcome: None
    )
    asyncio.run(_cancel_when((tmp_path / "begun").exists, work))
    assert (tmp_path / file).exists()
