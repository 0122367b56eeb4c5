"""The spool on disk: whole entries only, in order, over restarts."""

import asyncio
from pathlib import Path

import pytest

from noetl import faults
from noetl.model.envelope import Envelope
from noetl.model.events import CommandCompleted
from noetl.model.ids import CommandId, ExecutionId
from noetl.model.messages import Report
from noetl.worker.spool import FileSpool


def report(number: int) -> Report:
    command = CommandId(f"c{number}")
    event = CommandCompleted(command_id=command, attempt=1, result=Envelope(status="ok"))
    return Report(
        execution_id=ExecutionId("1"), command_id=command, attempt=1, worker="w", event=event
    )


def load_spool(folder: Path) -> list[str]:
    return [found.command_id for found in asyncio.run(FileSpool(folder).load())]


def test_entries_outlive_the_process_in_order(tmp_path: Path) -> None:
    async def fill() -> None:
        spool = FileSpool(tmp_path)
        for number in range(3):
            await spool.add(report(number))
        await spool.remove(report(1))

    asyncio.run(fill())
    assert load_spool(tmp_path) == ["c0", "c2"]


def test_a_torn_entry_is_ignored(tmp_path: Path) -> None:
    spool = FileSpool(tmp_path)
    asyncio.run(spool.add(report(0)))
    [entry] = tmp_path.iterdir()
    whole = entry.read_bytes()
    (tmp_path / "000000000001-x.report").write_bytes(whole[:-5])
    assert load_spool(tmp_path) == ["c0"]


class Crash(BaseException):
    pass


def test_a_crash_in_the_middle_of_a_write_leaves_nothing(tmp_path: Path) -> None:
    def crash(name: str) -> None:
        raise Crash(name)

    faults.install_fault_hook(crash)
    try:
        with pytest.raises(Crash):
            asyncio.run(FileSpool(tmp_path).add(report(0)))
    finally:
        faults.install_fault_hook(None)
    assert load_spool(tmp_path) == []
    asyncio.run(FileSpool(tmp_path).add(report(0)))
    assert load_spool(tmp_path) == ["c0"]


def test_it_is_bounded(tmp_path: Path) -> None:
    spool = FileSpool(tmp_path, capacity=2)
    asyncio.run(spool.add(report(0)))
    assert spool.free_places == 1
