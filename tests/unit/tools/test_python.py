"""The python tool, with real child processes."""

import asyncio
import os
import select
from typing import Any

import pytest

from noetl.model.ids import ExecutionId
from noetl.tools.port import Call, CallIdentity, Failed, Outcome, Success
from noetl.tools.python.process import PoolSettings
from noetl.tools.python.tool import Python


def call(code: str, given: dict[str, Any] | None = None, **more: Any) -> Call:
    config = {"code": code, "env": more.pop("env", {})}
    return Call(
        config=config,
        input=given or {},
        key="k",
        identity=CallIdentity(ExecutionId("1"), "s", "t"),
        **more,
    )


def run(code: str, given: dict[str, Any] | None = None, **more: Any) -> Outcome:
    return asyncio.run(Python().run(call(code, given, **more)))


def value(code: str, given: dict[str, Any] | None = None) -> Any:
    outcome = run(code, given)
    assert isinstance(outcome, Success), outcome
    return outcome.value


def failure(code: str, given: dict[str, Any] | None = None) -> Any:
    outcome = run(code, given)
    assert isinstance(outcome, Failed), outcome
    return outcome.failure


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("result = {'n': a + 1}", {"n": 3}),
        (
            "if a > 1:\n    b = a * 2\n    return [b, input['a'], args['a'], input_data['a']]\nreturn 0",
            [4, 2, 2, 2],
        ),
        ("a = a + 1\nreturn a", 3),
        ("def main(a, c=5):\n    return a + c", 7),
        ("async def main(input_data):\n    return input_data['a']", 2),
        ("def main(**given):\n    return sorted(given)", ["a"]),
        ("import asyncio\nawait asyncio.sleep(0)\nresult = a", 2),
        ("x = 1", None),
        ("from datetime import date\nresult = [date(2030, 1, 2), {3}]", ["2030-01-02", [3]]),
    ],
)
def test_how_code_gives_its_value(code: str, expected: Any) -> None:
    assert value(code, {"a": 2}) == expected


def test_a_long_traceback_keeps_its_end() -> None:
    functions = "".join(f"def step_{n}():\n    return step_{n + 1}()\n" for n in range(80))
    found = failure(f"{functions}def step_80():\n    raise ValueError('the cause')\nstep_0()")
    trace = found.detail["trace"]
    assert len(trace) <= 2000
    assert trace.splitlines()[-1] == "ValueError: the cause"
    assert "in step_80" in trace
    assert "in step_0\n" not in trace


def test_an_exception_is_a_failure_with_its_line() -> None:
    found = failure("x = 1\nraise ValueError('bad')")
    assert (found.code, found.message, found.detail["line"]) == (
        "PYTHON_ERROR",
        "ValueError: bad (line 2)",
        2,
    )
    assert found.detail["trace"].splitlines()[1].strip() == 'File "<code>", line 2, in <module>'


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("result = object()", "RESULT_NOT_JSON"),
        ("result = float('nan')", "RESULT_NOT_JSON"),
        ("import os; os._exit(3)", "TOOL_CRASHED"),
        ("import sys; sys.exit('no')", "PYTHON_ERROR"),
        ("this is not python", "PYTHON_ERROR"),
    ],
)
def test_other_ways_to_fail(code: str, expected: str) -> None:
    assert failure(code).code == expected


def test_a_number_that_json_lacks_is_named() -> None:
    found = failure("result = {'rows': [{'x': 1.0}, {'x': float('inf')}], 'more': [float('nan')]}")
    assert (
        found.message
        == "the result is not JSON: result['rows'][1]['x'] is NaN or infinite; give None instead"
    )


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("result = {1: 'a', '1': 'b'}", "result has the keys 1 and '1'"),
        ("result = {'true': 1, True: 2}", "result has the keys 'true' and True"),
        ("result = {None: 1, 'null': 2}", "result has the keys None and 'null'"),
        (
            "result = {'rows': [{'n': 1}, {'n': {0.5: 1, '0.5': 2}}]}",
            "result['rows'][1]['n'] has the keys 0.5 and '0.5'",
        ),
        (
            "from collections import defaultdict\nresult = [defaultdict(int, {2: 1, '2': 2})]",
            "result[0] has the keys 2 and '2'",
        ),
        (
            "from dataclasses import dataclass\n@dataclass\nclass Row:\n    cells: dict\n"
            "result = [Row({1: 'a', '1': 'b'})]",
            "Row['cells'] has the keys 1 and '1'",
        ),
    ],
)
def test_keys_that_are_equal_in_json_are_refused(code: str, message: str) -> None:
    found = failure(code)
    assert found.code == "RESULT_NOT_JSON"
    assert (
        found.message
        == f"the result is not JSON: {message}, which are equal in JSON; rename one of them"
    )


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("result = {1: 'a', 2: 'b', 'x': None}", {"1": "a", "2": "b", "x": None}),
        ("from collections import namedtuple\nresult = namedtuple('P', 'x y')(1, 2)", [1, 2]),
        ("from collections import Counter\nresult = Counter('aab')", {"a": 2, "b": 1}),
        ("result = [2**70, 'é', None, (1, 2), b'x']", [2**70, "é", None, [1, 2], "eA=="]),
        ("import enum\nclass C(enum.IntEnum):\n    A = 7\nresult = {C.A: C.A}", {"7": 7}),
    ],
)
def test_other_keys_and_types_are_written_as_json(code: str, expected: Any) -> None:
    assert value(code) == expected


def test_a_result_that_is_in_itself_is_refused_at_once() -> None:
    found = failure("result = []\nresult.extend([result] * 10)")
    assert (found.code, found.message) == (
        "RESULT_NOT_JSON",
        "the result is not JSON: Circular reference detected",
    )


def test_failure_with_a_false_exception_keeps_its_line_and_trace() -> None:
    found = failure(
        "class Empty(Exception):\n    def __len__(self):\n        return 0\nraise Empty('no rows')"
    )
    assert found.message == "Empty: no rows (line 4)"
    assert "line 4" in found.detail["trace"]


def test_prints_are_logs_and_do_not_disturb_the_result() -> None:
    lines: list[tuple[str, str]] = []
    outcome = run(
        "import sys\nprint('out')\nprint('err', file=sys.stderr)\nresult = 1",
        log=lambda *line: lines.append(line),
    )
    assert isinstance(outcome, Success)
    assert sorted(lines) == [("stderr", "err"), ("stdout", "out")]


def test_a_result_beyond_the_limit_is_refused() -> None:
    outcome = asyncio.run(
        Python(settings=PoolSettings(result_limit=1000)).run(call("result = 'x' * 5000"))
    )
    assert isinstance(outcome, Failed)
    assert outcome.failure.code == "RESULT_TOO_LARGE"


def test_the_workers_environment_stays_with_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOETL_SECRET", "hush")
    code = "import os\nresult = [os.environ.get('NOETL_SECRET'), os.environ.get('GIVEN')]"
    outcome = run(code, env={"GIVEN": "yes"})
    assert isinstance(outcome, Success)
    assert outcome.value == [None, "yes"]


def test_cancelling_kills_the_process_and_its_children() -> None:
    code = "import os, subprocess\np = subprocess.Popen(['sleep', '600'])\nprint(os.getpid(), p.pid, flush=True)\np.wait()"

    async def cancel_call() -> list[int]:
        """Both processes, by descriptors that become readable when they end."""
        started: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()
        task = asyncio.ensure_future(
            Python().run(
                call(
                    code,
                    log=lambda stream, line: started.set_result([int(pid) for pid in line.split()]),
                )
            )
        )
        alive = [os.pidfd_open(pid) for pid in await started]
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return alive

    for process in asyncio.run(cancel_call()):
        assert select.select([process], [], [], 10)[0] == [process]
        os.close(process)


def test_large_inputs_and_results_pass() -> None:
    assert len(value("result = rows", {"rows": ["x" * 100] * 20_000})) == 20_000
