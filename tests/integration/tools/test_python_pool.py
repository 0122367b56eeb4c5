"""The pool of Python children: what calls may not do to each other, and that nothing survives."""

import asyncio
import os
import select
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from noetl.model.ids import Tenant
from noetl.tools.port import Outcome, PlaybookKey
from noetl.tools.processes.limits import StepLimits
from noetl.tools.processes.messages import ProcessLimits
from noetl.tools.python.calls import CallGroup, PoolCall
from noetl.tools.python.process import MAX_MESSAGE_CALLS, PoolProcess, PoolSettings
from noetl.tools.python.tool import Python
from tests.unit.tools.calls import call, failure, run, value
from tests.waiting import HANG_LIMIT_S, until

PID = "import os\nresult = os.getpid()"


def one_child(**more: Any) -> PoolSettings:
    return PoolSettings(size=1, most=1, **more)


def make_limits(**limits: int) -> StepLimits:
    """Limits that no task may raise."""
    highest = ProcessLimits(**limits)
    return StepLimits(highest, highest)


def play(test: Callable[[Python], Awaitable[Any]], settings: PoolSettings | None = None) -> Any:
    async def play_on_tool() -> Any:
        tool = Python(settings=settings or one_child())
        try:
            return await test(tool)
        finally:
            await tool.close()

    return run(play_on_tool())


async def code(tool: Python, text: str, **more: Any) -> Outcome:
    env = more.pop("env", {})
    return await tool.run(call({"code": text, "env": env}, input=more.pop("given", {}), **more))


def in_order(*texts: str, settings: PoolSettings | None = None) -> list[Outcome]:
    """One after the other in one child, as long as that is fit."""

    async def test(tool: Python) -> list[Outcome]:
        return [await code(tool, text) for text in texts]

    found: list[Outcome] = play(test, settings)
    return found


def count_calls_of_messages(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of calls in every message that a child gets from now on."""
    sizes: list[int] = []
    start_batch = PoolProcess.start_batch

    def count_calls(child: PoolProcess, groups: list[CallGroup], batch: list[PoolCall]) -> None:
        sizes.append(len(batch))
        start_batch(child, groups, batch)

    monkeypatch.setattr(PoolProcess, "start_batch", count_calls)
    return sizes


def open_processes(pids: list[int]) -> list[int]:
    """Descriptors that become readable when the processes end."""
    return [os.pidfd_open(pid) for pid in pids]


def wait_for_ends(descriptors: list[int], seconds: float = 10.0) -> bool:
    ended = all(select.select([process], [], [], seconds)[0] for process in descriptors)
    for process in descriptors:
        os.close(process)
    return ended


# ---- isolation ---------------------------------------------------------------------------------------------------------


def test_a_child_takes_many_calls() -> None:
    assert len({value(outcome) for outcome in in_order(PID, PID, PID)}) == 1


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("x = 1", "result = 'x' in globals()", False),
        ("import os\nos.environ['A'] = 'b'", "import os\nresult = os.environ.get('A')", None),
        ("import os\nos.chdir('/')", "import os\nresult = os.getcwd() != '/'", True),
        ("open('left', 'w').write('x')", "import os\nresult = os.listdir('.')", []),
        ("import sys\nsys.path.insert(0, 'x')", "import sys\nresult = 'x' in sys.path", False),
        ("import sys\nsys.stdout = None", "print('fine')\nresult = 1", 1),
        ("import sys\nsys.stdout.close()", "print('fine')\nresult = 1", 1),
        ("import builtins\nbuiltins.len = lambda x: 7", "result = len([])", 0),
        ("import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)", "result = 1", 1),
        ("import os\nos.close(3)", "result = 1", 1),
        ("import sys\nsys.setrecursionlimit(50)", "result = 1", 1),
    ],
)
def test_what_a_call_changed_is_as_before_for_the_next(
    first: str, second: str, expected: Any
) -> None:
    assert value(in_order(first, second)[1]) == expected


def test_a_thread_that_is_left_behind_costs_the_child() -> None:
    leaves = "import threading, time, os\nthreading.Thread(target=time.sleep, args=(600,)).start()\nresult = os.getpid()"
    first, second = in_order(leaves, PID)
    assert value(first) != value(second)


def test_a_child_is_replaced_after_so_many_calls() -> None:
    found = in_order(PID, PID, PID, PID, settings=one_child(calls=2))
    pids = [value(outcome) for outcome in found]
    assert pids[0] == pids[1] != pids[2] == pids[3]


def test_a_child_that_grew_is_replaced() -> None:
    grows = "import builtins, os, json\njson.kept = bytearray(60_000_000)\nresult = os.getpid()"
    first, second = in_order(grows, PID, settings=one_child(memory=40_000_000))
    assert value(first) != value(second)


def test_a_fork_of_the_code_does_not_answer_in_its_place() -> None:
    forks = "import os\npid = os.fork()\nif pid:\n    os.waitpid(pid, 0)\nresult = 'child' if pid == 0 else 'parent'"
    assert [value(outcome) for outcome in in_order(forks, "result = 2")] == ["parent", 2]


def test_a_child_has_no_privileges_to_gain_and_its_own_session() -> None:
    text = "import os\nfile = open('/proc/self/status')\nresult = ['NoNewPrivs:\\t1' in file.read(), os.getsid(0) == os.getpid()]"
    assert value(in_order(text)[0]) == [True, True]


def test_its_environment_is_what_was_declared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOETL_DB_URL", "hush")

    async def test(tool: Python) -> list[Any]:
        text = "import os\nresult = sorted(os.environ)"
        return [value(await code(tool, text, env={"GIVEN": "x"})), value(await code(tool, text))]

    first, second = play(test)
    assert "GIVEN" in first
    assert "GIVEN" not in second
    assert "NOETL_DB_URL" not in first
    assert set(second) <= {
        "PATH",
        "HOME",
        "LANG",
        "LC_ALL",
        "LC_CTYPE",
        "TZ",
        "VIRTUAL_ENV",
        "LD_LIBRARY_PATH",
        "TMPDIR",
    }


# ---- limits ------------------------------------------------------------------------------------------------------------


def test_limits_hold() -> None:
    limits = make_limits(memory=400_000_000, file_size=10_000, open_files=40)
    memory, disk, files, after = in_order(
        "result = len(bytearray(500_000_000))",
        "open('f', 'w').write('x' * 20_000)",
        "result = [open('/dev/null') for _ in range(50)]",
        "result = 1",
        settings=one_child(limits=limits),
    )
    assert failure(memory).detail["exception"] == "MemoryError"
    assert failure(memory).code == "MEMORY_LIMIT"
    assert "381.5 MB" in failure(memory).message
    assert "limits: {memory: …}" in failure(memory).message
    assert failure(disk).code == "FILE_SIZE_LIMIT"
    assert failure(files).code == "OPEN_FILES_LIMIT"
    assert "Too many open files" in failure(files).message
    assert value(after) == 1


def test_a_call_that_burns_its_cpu_time_is_stopped() -> None:
    burn, after = in_order(
        "while True: pass", "result = 1", settings=one_child(limits=make_limits(cpu_seconds=1))
    )
    assert (failure(burn).code, failure(burn).kind) == ("CPU_LIMIT", "limit")
    assert value(after) == 1


# ---- crashes -----------------------------------------------------------------------------------------------------------

SEGFAULT = "import ctypes\nctypes.string_at(0)"


@pytest.mark.parametrize(
    "how", [SEGFAULT, "import os\nos.kill(os.getpid(), 9)", "import os\nos._exit(0)"]
)
def test_a_call_that_kills_its_child_fails_alone(how: str) -> None:
    before, crash, after = in_order("result = 1", how, "result = 2")
    assert (value(before), value(after)) == (1, 2)
    assert (failure(crash).code, failure(crash).kind) == ("TOOL_CRASHED", "crash")


def test_of_a_batch_only_the_call_that_crashed_fails() -> None:
    text = "import os\nif i == 37:\n    os._exit(3)\nresult = i"

    async def test(tool: Python) -> list[Outcome]:
        return list(await asyncio.gather(*(code(tool, text, given={"i": i}) for i in range(100))))

    found = play(test)
    assert [value(outcome) for i, outcome in enumerate(found) if i != 37] == [
        i for i in range(100) if i != 37
    ]
    assert failure(found[37]).code == "TOOL_CRASHED"
    assert "exit code 3" in failure(found[37]).message


def test_the_first_call_of_a_program_is_known_to_take_its_time() -> None:
    """Its answer may come a moment before the message that says how long the batch took."""

    async def test(tool: Python) -> list[float]:
        taken: list[float] = []
        for number in range(30):
            text = f"import time\ntime.sleep(0.01)\nresult = {number}"
            await tool.run_many(
                {"code": text},
                [{}],
                lambda nth: lambda *said: None,
                lambda nth, outcome, seconds, at_once: taken.append(seconds),
            )
        return taken

    assert min(play(test)) > 0.005


def test_single_calls_that_wait_share_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = count_calls_of_messages(monkeypatch)

    async def test(tool: Python) -> list[Outcome]:
        await tool.start()
        return list(await asyncio.gather(*(code(tool, PID) for _ in range(20))))

    play(test, PoolSettings(size=4, most=4))
    # the first finds no other call waiting and goes alone, the others share the next message
    assert sizes[:2] == [1, 19]


def test_answers_to_nothing_disturb_nobody() -> None:
    """Code that writes to its worker's socket."""
    noise = b'{"answers":[],"micros":1}'
    text = (
        f"import os, struct\nos.write(3, struct.pack('>BI', 1, {len(noise)}) + {noise})\nresult = 1"
    )
    assert [value(outcome) for outcome in in_order(text, "result = 2")] == [1, 2]


def test_what_is_not_an_answer_is_a_crash() -> None:
    noise, after = in_order("import os\nos.write(3, b'x' * 50)\nresult = 1", "result = 2")
    assert failure(noise).code == "TOOL_CRASHED"
    assert value(after) == 2


# ---- stopping ----------------------------------------------------------------------------------------------------------


async def start_call(tool: Python, text: str) -> tuple[asyncio.Task[Outcome], list[int]]:
    """The call, once it has printed its numbers."""
    said: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()

    def note_line(stream: str, line: str) -> None:
        if not said.done():
            said.set_result([int(word) for word in line.split()])

    task = asyncio.ensure_future(code(tool, text, log=note_line))
    return task, await said


def test_a_call_that_ignores_sigterm_is_stopped() -> None:
    text = "import os, signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint(os.getpid())\ntime.sleep(600)"

    async def test(tool: Python) -> list[int]:
        task, pids = await start_call(tool, text)
        processes = open_processes(pids)
        task.cancel()
        await asyncio.wait([task])
        return processes

    assert wait_for_ends(play(test), 0)


def test_whatever_a_call_started_is_gone_when_it_ends(tmp_path: Path) -> None:
    """In its group, out of its group, and out of its session."""
    text = """
import os, subprocess
one = subprocess.Popen(['sleep', '600'])
two = subprocess.Popen(['sleep', '600'], start_new_session=True)
three = subprocess.run(['sh', '-c', 'setsid sleep 600 >/dev/null 2>&1 & echo $!'], capture_output=True, text=True).stdout
print(one.pid, two.pid, three)
open(WAIT).read()
result = [one.pid, two.pid, int(three)]
"""
    pipe = str(tmp_path / "pipe")
    os.mkfifo(pipe)

    async def test(tool: Python) -> list[int]:
        task, pids = await start_call(tool, text.replace("WAIT", repr(pipe)))
        processes = open_processes(pids)
        await asyncio.to_thread(Path(pipe).write_text, "seen")
        assert value(await task) == pids
        return processes

    assert wait_for_ends(play(test), 0)


def test_cancelling_one_call_of_a_batch_leaves_the_others() -> None:
    text = "import time\nif wait:\n    print(1, flush=True)\n    time.sleep(600)\nresult = i"

    async def test(tool: Python) -> list[Any]:
        for i in range(3):
            await code(tool, text, given={"i": i, "wait": False})
        said = asyncio.Event()
        given = [{"i": i, "wait": i == 5} for i in range(20)]
        calls = [
            asyncio.ensure_future(code(tool, text, given=g, log=lambda *_: said.set()))
            for g in given
        ]
        await said.wait()
        calls[5].cancel()
        return await asyncio.gather(*calls, return_exceptions=True)

    found = play(test)
    assert isinstance(found[5], asyncio.CancelledError)
    assert [value(outcome) for i, outcome in enumerate(found) if i != 5] == [
        i for i in range(20) if i != 5
    ]


def test_short_calls_do_not_wait_behind_a_long_one() -> None:
    async def test(tool: Python) -> list[Any]:
        task, _ = await start_call(tool, "import time\nprint(1)\ntime.sleep(600)")
        short = await asyncio.gather(*(code(tool, "result = i", given={"i": i}) for i in range(10)))
        assert not task.done()
        task.cancel()
        await asyncio.wait([task])
        return [value(outcome) for outcome in short]

    assert play(test, PoolSettings(size=1, most=3)) == list(range(10))


MEETS = """
import os, time
open(os.path.join(folder, str(n)), "w").close()
while len(os.listdir(folder)) < meet:
    time.sleep(0.01)
result = n
"""


@pytest.mark.parametrize("count", [3, 5, 9])
def test_calls_that_are_made_at_once_all_begin(tmp_path: Path, count: int) -> None:
    """Those that share a message behind a slow call are taken back, and go to another child."""

    async def test(tool: Python) -> list[Outcome]:
        given = {"folder": str(tmp_path), "meet": count}
        calls = [code(tool, MEETS, given={**given, "n": n}) for n in range(count)]
        async with asyncio.timeout(HANG_LIMIT_S):
            return await asyncio.gather(*calls)

    outcomes = play(test, PoolSettings(size=2, most=16))
    assert [value(outcome) for outcome in outcomes] == list(range(count))


def test_a_call_that_waits_can_be_cancelled() -> None:
    async def test(tool: Python) -> None:
        running, _ = await start_call(tool, "import time\nprint(1)\ntime.sleep(600)")
        waiting = asyncio.ensure_future(code(tool, "result = 1"))
        await asyncio.sleep(0)
        for task in (waiting, running):
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled()

    play(test)


def test_nothing_outlives_a_worker_that_is_killed(tmp_path: Path) -> None:
    """Neither the children nor what their code started, in any session."""
    worker = tmp_path / "worker.py"
    worker.write_text(
        "import asyncio, sys\n"
        "from noetl.tools.python.tool import Python\n"
        "from tests.unit.tools.calls import call\n"
        "text = '''import os, subprocess, time\n"
        "p = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        "print(os.getpid(), p.pid)\ntime.sleep(600)'''\n"
        "asyncio.run(Python().run(call({'code': text}, log=lambda stream, line: print(line, flush=True))))\n"
    )
    root = Path(__file__).parents[3]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    with subprocess.Popen(
        [sys.executable, str(worker)], stdout=subprocess.PIPE, env=environment, text=True
    ) as process:
        assert process.stdout is not None
        processes = open_processes([int(pid) for pid in process.stdout.readline().split()])
        process.send_signal(signal.SIGKILL)
    assert wait_for_ends(processes)


# ---- prints ------------------------------------------------------------------------------------------------------------


def test_lines_come_in_order_and_within_limits() -> None:
    text = """
import os, sys
for n in range(3):
    print('out', n)
    print('err', n, file=sys.stderr)
sys.stdout.write('no newline')
result = 1
"""

    async def test(tool: Python) -> list[tuple[str, str]]:
        lines: list[tuple[str, str]] = []
        await code(tool, text, log=lambda *line: lines.append(line))
        return lines

    expected = [line for n in range(3) for line in (("stdout", f"out {n}"), ("stderr", f"err {n}"))]
    assert play(test) == [*expected, ("stdout", "no newline")]


def test_output_of_processes_is_heard_too() -> None:
    async def test(tool: Python) -> list[tuple[str, str]]:
        lines: list[tuple[str, str]] = []
        await code(
            tool,
            "import os\nos.system('echo one; echo two >&2')",
            log=lambda *line: lines.append(line),
        )
        return lines

    assert sorted(play(test)) == [("stderr", "two"), ("stdout", "one")]


def test_endless_output_is_cut() -> None:
    async def test(tool: Python) -> list[str]:
        lines: list[str] = []
        await code(
            tool,
            "for n in range(30_000):\n    print('x' * 100)",
            log=lambda _, line: lines.append(line),
        )
        return lines

    lines = play(test)
    assert "not kept" in lines[-1]
    assert sum(map(len, lines)) < 1_200_000


def test_each_call_of_a_batch_has_its_own_lines() -> None:
    async def test(tool: Python) -> list[list[str]]:
        heard: list[list[str]] = [[] for _ in range(50)]

        def one(i: int) -> Awaitable[Outcome]:
            return code(tool, "print(i)", given={"i": i}, log=lambda _, line: heard[i].append(line))

        await asyncio.gather(*(one(i) for i in range(50)))
        return heard

    assert play(test) == [[str(i)] for i in range(50)]


# ---- many at once --------------------------------------------------------------------------------------------------------


def answers(
    text: str, inputs: list[dict[str, Any]], settings: PoolSettings, **more: Any
) -> list[Any]:
    async def test(tool: Python) -> list[Any]:
        outcomes: list[Outcome | None] = [None] * len(inputs)

        def keep_outcome(nth: int, outcome: Outcome, seconds: float, running: int) -> None:
            assert outcomes[nth] is None
            assert running <= more["at_once"]
            outcomes[nth] = outcome

        await tool.run_many(
            {"code": text}, inputs, lambda nth: lambda *said: None, keep_outcome, **more
        )
        return outcomes

    found: list[Any] = play(test, settings)
    return found


OVERLAP = """
import os, time
began = time.monotonic()
while time.monotonic() < began + 0.005:
    pass
result = [began, time.monotonic(), os.getpid()]
"""


@pytest.mark.parametrize("at_once", [1, 2, 3])
def test_no_more_run_at_once_than_may(at_once: int) -> None:
    """Though there are children for all of them, and each call is long enough to be taken over by another one."""
    outcomes = answers(OVERLAP, [{}] * 24, PoolSettings(size=8, most=8), at_once=at_once)
    times = [value(outcome) for outcome in outcomes]
    assert len(times) == 24
    for began, _, _ in times:
        assert sum(start <= began < end for start, end, _ in times) <= at_once


def test_a_chunk_goes_to_a_child_as_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = count_calls_of_messages(monkeypatch)
    outcomes = answers("result = n", [{"n": n} for n in range(3_000)], one_child(), at_once=1)
    assert [value(outcome) for outcome in outcomes] == list(range(3_000))
    assert sizes == [3_000]


def test_a_crash_at_the_end_of_a_message_leaves_the_rest_of_a_large_chunk() -> None:
    last = MAX_MESSAGE_CALLS - 1
    text = f"import os\nif n == {last}:\n    os._exit(3)\nresult = n"
    inputs = [{"n": n} for n in range(MAX_MESSAGE_CALLS + 100)]
    outcomes = answers(text, inputs, one_child(), at_once=1)
    assert failure(outcomes[last]).code == "TOOL_CRASHED"
    del outcomes[last]
    del inputs[last]
    assert [value(outcome) for outcome in outcomes] == [given["n"] for given in inputs]


def test_children_share_a_chunk_of_slow_calls() -> None:
    text = "import os, time\ntime.sleep(0.1)\nresult = os.getpid()"
    outcomes = answers(text, [{}] * 12, PoolSettings(size=1, most=6), at_once=6)
    assert len({value(outcome) for outcome in outcomes}) > 1


def test_a_call_of_another_program_does_not_wait_for_the_end_of_a_chunk() -> None:
    text = "import time\ntime.sleep(0.002)\nresult = n"

    async def test(tool: Python) -> tuple[int, list[int]]:
        ended: list[int] = []
        begun = asyncio.Event()

        def keep_value(nth: int, outcome: Outcome, seconds: float, running: int) -> None:
            ended.append(value(outcome))
            begun.set()

        inputs = [{"n": n} for n in range(1_000)]
        chunk = asyncio.ensure_future(
            tool.run_many({"code": text}, inputs, lambda nth: lambda *said: None, keep_value)
        )
        await begun.wait()
        await code(tool, "result = 1")
        before = len(ended)
        await chunk
        return before, ended

    before, ended = play(test)
    assert before < 1_000
    assert ended == list(range(1_000))


def test_nothing_of_a_chunk_begins_after_its_caller_was_cancelled(tmp_path: Path) -> None:
    text = "import time\nopen(f'{folder}/{n}', 'w').close()\ntime.sleep(0.01)"

    async def test(tool: Python) -> Any:
        begun = asyncio.Event()
        inputs = [{"n": n, "folder": str(tmp_path)} for n in range(1_000)]
        chunk = asyncio.ensure_future(
            tool.run_many(
                {"code": text},
                inputs,
                lambda nth: lambda *said: None,
                lambda *outcome: begun.set(),
                at_once=2,
            )
        )
        await begun.wait()
        chunk.cancel()
        await asyncio.wait([chunk])
        made = len(os.listdir(tmp_path))
        assert value(await code(tool, "result = 1")) == 1
        return made

    made = play(test, PoolSettings(size=2, most=2))
    assert 0 < made < 1_000
    assert len(list(tmp_path.iterdir())) == made


def test_after_a_failure_nothing_begins(tmp_path: Path) -> None:
    text = "open(f'{folder}/{n}', 'w').close()\nassert n != 3"
    inputs = [{"n": n, "folder": str(tmp_path)} for n in range(2_000)]
    outcomes = answers(text, inputs, one_child(), at_once=2, stop=True)
    assert failure(outcomes[3]).code == "PYTHON_ERROR"
    made = {int(path.name) for path in tmp_path.iterdir()}
    assert made == {n for n, outcome in enumerate(outcomes) if outcome is not None}
    assert len(made) < 2_000
    everything = answers(text, inputs, one_child(), at_once=2)
    assert [n for n, outcome in enumerate(everything) if not hasattr(outcome, "value")] == [3]


ENDS = {
    "fails": "assert n != 70",
    "crashes": "import os\nif n == 70: os._exit(3)",
    "spoils": "import threading, time\nif n == 70:\n    threading.Thread(target=time.sleep, args=(9,)).start()\n    1 / 0",
}


@pytest.mark.parametrize("end", ENDS)
def test_one_at_a_time_a_failure_is_the_last_that_begins(tmp_path: Path, end: str) -> None:
    text = f"open(f'{{folder}}/{{n}}', 'a').write('x')\n{ENDS[end]}\nresult = n"
    inputs = [{"n": n, "folder": str(tmp_path)} for n in range(200)]
    for at in range(3):
        outcomes = answers(text, inputs, PoolSettings(size=4, most=4), at_once=1, stop=True)
        assert [value(outcome) for outcome in outcomes[:70]] == list(range(70))
        assert failure(outcomes[70]).code == (
            "TOOL_CRASHED" if end == "crashes" else "PYTHON_ERROR"
        )
        assert outcomes[71:] == [None] * 129
        assert {int(path.name) for path in tmp_path.iterdir()} == set(range(71))
        assert len((tmp_path / "70").read_text()) == at + 1


def test_one_at_a_time_nothing_begins_after_an_input_that_is_none(tmp_path: Path) -> None:
    text = "open(f'{folder}/{n}', 'w').close()\nresult = n"
    inputs = [
        {"n": n, "folder": str(tmp_path), **({"bad": object()} if n == 2 else {})} for n in range(5)
    ]
    outcomes = answers(text, inputs, one_child(), at_once=1, stop=True)
    assert failure(outcomes[2]).code == "INPUT_NOT_JSON"
    assert outcomes[3:] == [None, None]
    assert {path.name for path in tmp_path.iterdir()} == {"0", "1"}


# ---- playbooks ---------------------------------------------------------------------------------------------------------


def make_playbooks(count: int) -> list[PlaybookKey]:
    return [PlaybookKey(content=f"text {number}") for number in range(count)]


async def run_in_order(tool: Python, playbooks: list[PlaybookKey]) -> list[int]:
    """The pid of the child that each of the playbooks gets."""
    return [value(await code(tool, PID, playbook=playbook)) for playbook in playbooks]


def test_child_serves_one_playbook() -> None:
    first, second = make_playbooks(2)

    async def test(tool: Python) -> list[int]:
        return await run_in_order(tool, [first, second, first, second, first])

    pids = play(test)
    assert len(set(pids[::2])) == 1
    assert len(set(pids[1::2])) == 1
    assert len(set(pids)) == 2


def test_child_serves_one_tenant() -> None:
    tenants = [PlaybookKey(Tenant(number), "same text") for number in (1, 2)]

    async def test(tool: Python) -> list[int]:
        return await run_in_order(tool, tenants)

    assert len(set(play(test))) == 2


def test_loop_shares_no_child_with_another_playbook() -> None:
    async def test(tool: Python) -> list[set[int]]:
        found: list[set[int]] = []
        for playbook in make_playbooks(2) * 2:
            pids: list[Any] = []
            await tool.run_many(
                {"code": PID},
                [{}] * 8,
                lambda nth: lambda *said: None,
                lambda nth, outcome, seconds, at_once, pids=pids: pids.append(value(outcome)),
                playbook=playbook,
            )
            found.append(set(pids))
        return found

    first, second, first_again, second_again = play(test, PoolSettings(size=2, most=2))
    assert not (first | first_again) & (second | second_again)


def test_idle_children_are_bounded_and_the_least_recently_used_ends() -> None:
    playbooks = make_playbooks(6)

    async def test(tool: Python) -> None:
        pids = await run_in_order(tool, playbooks)
        await asyncio.to_thread(
            until, lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids[:4])
        )
        assert await run_in_order(tool, playbooks[4:]) == pids[4:]

    play(test, one_child(kept=1))


def test_new_children_are_ready_for_further_playbooks() -> None:
    async def test(tool: Python) -> None:
        await tool.start()
        pids = await run_in_order(tool, make_playbooks(20))
        assert len(set(pids)) == 20

    play(test, PoolSettings(size=2, most=2, kept=3))
