"""Many records between Python children and the worker: as columns in shared memory."""

import asyncio
import os
import select
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from noetl.results.formats import records
from noetl.results.formats.rowsets import open_table_reader
from noetl.results.formats.shared_records import SharedRecords
from noetl.results.formats.tables import ArrowRecords, EncodedTable, TableOptions
from noetl.tools.port import Outcome, Success
from noetl.tools.python import pool
from noetl.tools.python.process import PoolSettings
from noetl.tools.python.tool import Python
from tests.unit.tools.calls import call, failure, run, value

MAKE = "return [{'id': i, 'name': f'n{i}', 'half': i / 2, 'even': i % 2 == 0} for i in range(n)]"
ROWS = [{"id": i, "name": f"n{i}", "half": i / 2, "even": i % 2 == 0} for i in range(3_000)]

# Code that answers for itself: `layout` and the bytes of its shared memory are its own.
FORGED_ANSWER = """
import fcntl, json, os, socket, struct
memory = os.memfd_create("forged", os.MFD_ALLOW_SEALING)
os.write(memory, {data!r})
if {seals}:
    fcntl.fcntl(memory, fcntl.F_ADD_SEALS, {seals})
answer = {{"value": None, "at": None, "layout": {layout!r}}}
body = json.dumps({{"answers": [answer], "micros": 1}}).encode()
worker = socket.socket(fileno=os.dup(3))
descriptors = [memory] if {sends} else []
socket.send_fds(worker, [struct.pack(">BI", 1, len(body)) + body], descriptors)
worker.close()
os.close(memory)
import time
time.sleep(30)
"""
ALL_SEALS = 15
OFFSETS = (0).to_bytes(4, "little") + (1 << 30).to_bytes(4, "little")


def play(test: Callable[[Python], Awaitable[Any]], settings: PoolSettings | None = None) -> Any:
    async def play_on_tool() -> Any:
        tool = Python(settings=settings or PoolSettings(size=1, most=1))
        try:
            return await test(tool)
        finally:
            await tool.close()

    return run(play_on_tool())


async def run_code(tool: Python, text: str, **more: Any) -> Outcome:
    given = more.pop("given", {})
    return await tool.run(call({"code": text}, input=given, columns=True, **more))


def read(outcome: Outcome) -> Any:
    found = value(outcome)
    assert isinstance(found, ArrowRecords), found
    return found.value()


def share_rows(rows: list[dict[str, Any]]) -> SharedRecords:
    found = records.find_records(rows)
    assert found is not None
    table = records.encode_table(rows, found, TableOptions())
    assert isinstance(table, EncodedTable)
    return open_table_reader(table).share_rows()


def count_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_an_idle_child_that_has_held_records_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "MAX_IDLE_CHILD_S", 0.01)
    pid = "import os\nreturn os.getpid()"

    async def test(tool: Python) -> None:
        first = value(await run_code(tool, pid))
        assert value(await run_code(tool, pid)) == first
        read(await run_code(tool, MAKE, given={"n": 3_000}))
        ended = os.pidfd_open(first)
        await asyncio.to_thread(select.select, [ended], [], [])
        os.close(ended)
        assert value(await run_code(tool, pid)) != first

    play(test)


def test_records_come_as_columns_if_the_caller_takes_them() -> None:
    async def test(tool: Python) -> None:
        assert read(await run_code(tool, MAKE, given={"n": 3_000})) == ROWS
        wrapped = await run_code(
            tool,
            f"def make(n):\n    {MAKE}\nreturn {{'a': 1, 'rows': make(n), 'z': [2]}}",
            given={"n": 3_000},
        )
        assert list(read(wrapped).items()) == [("a", 1), ("rows", ROWS), ("z", [2])]
        assert value(await run_code(tool, MAKE, given={"n": 3})) == ROWS[:3]
        plain = await tool.run(call({"code": MAKE}, input={"n": 3_000}))
        assert value(plain) == ROWS

    play(test)


def test_a_map_with_another_long_list_or_much_text_is_no_row_set() -> None:
    async def test(tool: Python) -> None:
        for rest in ({"more": list(range(300))}, {"text": "x" * 20_000}):
            code = "return {'rows': [{'i': i} for i in range(2000)], **rest}"
            found = value(await run_code(tool, code, given={"rest": rest}))
            assert found == {"rows": [{"i": number} for number in range(2_000)], **rest}

    play(test)


def test_calls_that_share_a_message_each_bring_their_records() -> None:
    async def test(tool: Python) -> None:
        sizes = [3_000, 2, 2_000, 1_500]
        calls = [run_code(tool, MAKE, given={"n": size}) for size in sizes]
        outcomes = await asyncio.gather(*calls)
        for size, outcome in zip(sizes, outcomes, strict=True):
            found = value(outcome)
            rows = found.value() if isinstance(found, ArrowRecords) else found
            assert rows == ROWS[:size]

    play(test)


def test_shared_records_are_lists_and_dicts_for_the_code() -> None:
    code = "rows[0]['id'] = -1\nreturn [type(rows) is list, type(rows[0]) is dict, rows[0]['id'], rows[-1], list(input)]"

    async def test(tool: Python) -> None:
        shared = share_rows(ROWS)
        outcome = await run_code(tool, code, given={"a": 1, "rows": shared, "b": 2})
        assert value(outcome) == [True, True, -1, ROWS[-1], ["a", "rows", "b"]]
        assert not shared.close.alive

    play(test)


def test_a_child_needs_no_arrow_for_records() -> None:
    code = "import sys\nreturn [{'n': len(rows), 'arrow': 'pyarrow' in sys.modules}] * 2000"

    async def test(tool: Python) -> None:
        [row, *_] = read(await run_code(tool, code, given={"rows": share_rows(ROWS)}))
        assert row == {"n": 3_000, "arrow": False}

    play(test)


def test_the_limit_of_a_result_holds_for_columns_too() -> None:
    async def test(tool: Python) -> None:
        assert failure(await run_code(tool, MAKE, given={"n": 3_000})).code == "RESULT_TOO_LARGE"
        assert value(await run_code(tool, MAKE, given={"n": 2})) == ROWS[:2]

    play(test, PoolSettings(size=1, most=1, result_limit=50_000))


def test_a_limit_on_files_sends_records_as_json() -> None:
    code = (
        "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))\n"
        + MAKE
    )

    async def test(tool: Python) -> None:
        assert value(await run_code(tool, code, given={"n": 3_000})) == ROWS

    play(test)


def test_no_descriptor_stays_open() -> None:
    async def test(tool: Python) -> None:
        await run_code(tool, "return 1")
        before = count_descriptors()
        for _ in range(3):
            outcome = await run_code(tool, "return rows", given={"rows": share_rows(ROWS)})
            assert read(outcome) == ROWS
            crashed = await run_code(
                tool, "import os\nos.kill(os.getpid(), 9)", given={"rows": share_rows(ROWS)}
            )
            assert failure(crashed).code == "TOOL_CRASHED"
            await run_code(tool, "return 1")
        del outcome
        assert count_descriptors() == before

    play(test)


@pytest.mark.parametrize(
    ("seals", "data", "column", "code"),
    [
        (0, b"12345678", {"kind": "int64", "data": [0, 8]}, "RESULT_NOT_JSON"),
        (ALL_SEALS, b"12345678", {"kind": "int64", "data": [8, 8]}, "RESULT_NOT_JSON"),
        (ALL_SEALS, b"1234", {"kind": "int64", "data": [0, 4]}, "RESULT_NOT_JSON"),
        (ALL_SEALS, b"1234", {"kind": "unknown", "data": [0, 4]}, "RESULT_NOT_JSON"),
        (ALL_SEALS, OFFSETS, {"kind": "string", "offsets": [0, 8], "data": [0, 8]}, "RESULT_NOT_JSON"),
        (ALL_SEALS, b"x", {"kind": 5}, "TOOL_CRASHED"),
    ],
)  # fmt: skip
def test_forged_columns_fail_their_call_alone(
    seals: int, data: bytes, column: dict[str, Any], code: str
) -> None:
    layout = {"names": ["a"], "batches": [{"rows": 1, "columns": [column]}]}
    forged = FORGED_ANSWER.format(data=data, seals=seals, layout=layout, sends=True)

    async def test(tool: Python) -> None:
        assert failure(await run_code(tool, forged)).code == code
        assert value(await run_code(tool, "return 2")) == 2

    play(test, PoolSettings(size=2, most=2))


@pytest.mark.parametrize("rows", [10**12, 1 << 40])
def test_forged_rows_without_memory_are_refused(rows: int) -> None:
    """Columns of nulls take no memory, so their number alone could keep a worker busy for ever."""
    layout = {"names": ["a"], "batches": [{"rows": rows, "columns": [{"kind": "null"}]}]}
    forged = FORGED_ANSWER.format(data=b"x", seals=ALL_SEALS, layout=layout, sends=True)

    async def test(tool: Python) -> None:
        assert failure(await run_code(tool, forged)).code == "RESULT_NOT_JSON"

    play(test)


def test_forged_memory_that_is_too_large_is_refused() -> None:
    layout = {"names": ["a"], "batches": [{"rows": 1, "columns": [{"kind": "null"}]}]}
    forged = FORGED_ANSWER.format(data=b"x" * (2 << 20), seals=ALL_SEALS, layout=layout, sends=True)

    async def test(tool: Python) -> None:
        assert failure(await run_code(tool, forged)).code == "RESULT_NOT_JSON"

    play(test, PoolSettings(size=1, most=1, result_limit=1 << 16))


def test_a_layout_without_shared_memory_is_a_crash() -> None:
    layout = {"names": ["a"], "batches": []}
    forged = FORGED_ANSWER.format(data=b"x", seals=0, layout=layout, sends=False)

    async def test(tool: Python) -> None:
        assert failure(await run_code(tool, forged)).code == "TOOL_CRASHED"
        assert isinstance(await run_code(tool, "return 2"), Success)

    play(test)
