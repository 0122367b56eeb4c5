"""A step that takes too much fails with the limit that it reached. The worker lives, and others do not notice."""

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from noetl.tools.processes.limits import read_machine_memory
from tests.e2e.conftest import StackClient
from tests.integration.escape.ordinary_user import run_playbook

PYTHON = shlex.quote(sys.executable)
FOUR_GB = 4 << 30
FORK_BOMB = """
import os
pids = []
try:
    while True:
        pid = os.fork()
        if pid == 0:
            import signal
            signal.pause()
        pids.append(pid)
finally:
    count = len(pids)
    for pid in pids:
        os.kill(pid, 9)
    for pid in pids:
        os.waitpid(pid, 0)
    print(count)
"""


def make_steps(tool: dict[str, Any]) -> list[dict[str, Any]]:
    """A step with this tool, and one after it that runs whatever happened."""
    codes = {"ctx.code": "{{ error.code }}", "ctx.message": "{{ error.message }}"}
    arcs = [{"step": "after", "when": "{{ error is defined }}", "set": codes}]
    after = {"kind": "python", "code": "result = 'still here'"}
    return [
        {"step": "greedy", "tool": tool, "next": arcs},
        {"step": "after", "tool": after},
    ]


GREEDY: dict[str, tuple[dict[str, Any], str]] = {
    "python memory": (
        {"kind": "python", "code": f"x = bytearray({FOUR_GB})", "limits": {"memory": "512MB"}},
        "MEMORY_LIMIT",
    ),
    "python memory in pieces": (
        {
            "kind": "python",
            "code": "x = []\nwhile True:\n    x.append(bytearray(1 << 20))",
            "limits": {"memory": "256MB"},
        },
        "MEMORY_LIMIT",
    ),
    "shell memory": (
        {
            "kind": "shell",
            "cmds": [f"{PYTHON} -c 'x = bytearray({FOUR_GB})'"],
            "limits": {"memory": "512MB"},
        },
        "MEMORY_LIMIT",
    ),
    "python cpu": (
        {"kind": "python", "code": "while True: pass", "limits": {"cpu": "1s"}},
        "CPU_LIMIT",
    ),
    "shell cpu": (
        {"kind": "shell", "cmds": ["while :; do :; done"], "limits": {"cpu": "1s"}},
        "CPU_LIMIT",
    ),
    "python file size": (
        {
            "kind": "python",
            "code": "with open('f', 'wb') as file:\n    while True:\n        file.write(bytes(1 << 20))",
            "limits": {"file_size": "8MB"},
        },
        "FILE_SIZE_LIMIT",
    ),
    "shell file size": (
        {
            "kind": "shell",
            "cmds": ["head -c 100000000 /dev/zero > f"],
            "limits": {"file_size": "8MB"},
        },
        "FILE_SIZE_LIMIT",
    ),
    "python open files": (
        {
            "kind": "python",
            "code": "x = [open('/dev/null') for _ in range(1000)]",
            "limits": {"open_files": 64},
        },
        "OPEN_FILES_LIMIT",
    ),
}


@pytest.mark.parametrize("name", GREEDY)
def test_greedy_step_fails_with_its_limit_and_others_go_on(stack: StackClient, name: str) -> None:
    tool, code = GREEDY[name]
    beside = stack.start(stack.register(json.dumps([{"step": "s", "tool": {"kind": "noop"}}])))
    row = stack.run(json.dumps(make_steps(tool)))
    assert row["status"] == "completed"
    assert row["vars"]["code"] == code
    (limit,) = tool["limits"]
    assert f"limits: {{{limit}: …}}" in row["vars"]["message"]
    assert stack.wait_for_end(beside)["status"] == "completed"


def test_four_gigabytes_are_refused_by_default(stack: StackClient) -> None:
    if read_machine_memory() // 2 > FOUR_GB:
        pytest.skip("a step may have four gigabytes on this machine")
    row = stack.run(json.dumps(make_steps({"kind": "python", "code": f"bytearray({FOUR_GB})"})))
    assert row["vars"]["code"] == "MEMORY_LIMIT"


def test_limit_above_the_cap_of_the_worker_is_refused(stack: StackClient) -> None:
    tool = {"kind": "python", "code": "result = 1", "limits": {"memory": "900TB"}}
    row = stack.run(json.dumps(make_steps(tool)))
    assert row["vars"]["code"] == "LIMIT_TOO_HIGH"
    assert "NOETL_STEP_MAX_MEMORY_BYTES" in row["vars"]["message"]


def test_limits_of_one_step_are_not_those_of_the_next(stack: StackClient) -> None:
    code = "import resource\nresult = resource.getrlimit(resource.RLIMIT_NOFILE)[0]"
    usual = {"kind": "python", "code": code}
    steps = [
        {
            "step": "low",
            "tool": {**usual, "limits": {"open_files": 77}},
            "set": {"ctx.low": "{{ output.data }}"},
            "next": "usual",
        },
        {"step": "usual", "tool": usual, "set": {"ctx.usual": "{{ output.data }}"}},
    ]
    row = stack.run(json.dumps(steps))
    assert (row["vars"]["low"], row["vars"]["usual"]) == (77, 1024)


def test_step_that_lowers_its_own_limits_for_ever_harms_no_other(stack: StackClient) -> None:
    lower = "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (20, 20))"
    read = "import resource\nresult = resource.getrlimit(resource.RLIMIT_NOFILE)[0]"
    steps = [
        {"step": "lower", "tool": {"kind": "python", "code": lower}, "next": "read"},
        {
            "step": "read",
            "tool": {"kind": "python", "code": read},
            "set": {"ctx.read": "{{ output.data }}"},
        },
    ]
    assert stack.run(json.dumps(steps))["vars"]["read"] == 1024


def test_fork_bomb_of_an_ordinary_user_ends_at_the_limit(ordinary_folder: Path) -> None:
    tool = {"kind": "python", "code": FORK_BOMB, "limits": {"processes": 40}}
    found = run_playbook(ordinary_folder, make_steps(tool))
    assert found["ctx"]["code"] == "PROCESS_LIMIT"
    assert found["result"] == "still here"
