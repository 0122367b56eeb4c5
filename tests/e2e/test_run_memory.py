"""`noetl run --memory` as a user runs it: every example to its end, failures and wrong use with their exit codes."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from noetl.cli import main

ROOT = Path(__file__).parents[2]


class RunOutput(NamedTuple):
    code: int
    out: str
    err: str


Noetl = Callable[..., RunOutput]


@pytest.fixture
def noetl(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Noetl:
    """The command in this process; tools still run in children."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "160")
    for name in list(os.environ):
        if name.startswith("NOETL_"):
            monkeypatch.delenv(name)

    def command(*arguments: str | Path) -> RunOutput:
        monkeypatch.setattr(sys, "argv", ["noetl", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        return RunOutput(
            ended.value.code if isinstance(ended.value.code, int) else 0, *capsys.readouterr()
        )

    return command


@pytest.fixture
def run(noetl: Noetl) -> Callable[..., dict[str, Any]]:
    def command(*arguments: str | Path) -> dict[str, Any]:
        done = noetl("run", "--memory", "--json", *arguments)
        said: dict[str, Any] = json.loads(done.out)
        assert done.code == (0 if said["status"] == "completed" else 1)
        assert done.err == ""
        return said

    return command


Run = Callable[..., dict[str, Any]]


def playbook(folder: Path, workflow: str, name: str = "test") -> Path:
    file = folder / f"{name}.yaml"
    head = f"apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {{name: {name}, path: {name}}}\nworkflow:\n"
    file.write_text(head + workflow)
    return file


@pytest.mark.parametrize(
    ("example", "arguments", "result", "steps"),
    [
        ("hello", ["--set", "name=Ada"], "HELLO, ADA!", ["greet", "shout"]),
        ("hello", ["--set", "name=" + "x" * 50], {"text": "Hello, " + "x" * 50 + "!"}, ["greet"]),
        ("loop", ["--set", "count=10"], {"squares": 10, "total": 385}, ["numbers", "square", "report"]),
        ("branches", ["--set", "amount=50", "--set", "country=DE"], "shipped", ["receive", "check_stock", "decide", "ship"]),
        ("branches", ["--set", "amount=9000"], "refused",
         ["receive", "check_stock", "check_credit", "check_customs", "decide", "refuse"]),
        ("fan_out", [], {"open": 18, "revenue": 2934, "best": 226, "failed": [9, 19]}, ["list_shops", "read_shop", "report"]),
        ("pipeline", ["--set", "text=a b"], {"verdict": "few"}, ["words", "few"]),
        ("shell", [], {"lines": 5, "last": "order 21 of O'Hara & Sons; echo $HOME"}, ["print", "report"]),
        ("shell", ["--set", "customer='$(exit) * \"x'"], {"lines": 5, "last": 'order 21 of $(exit) * "x'}, ["print", "report"]),
    ],
)  # fmt: skip
def test_an_example_ends_as_it_says(
    example: str, arguments: list[str], result: Any, steps: list[str], run: Run
) -> None:
    said = run(f"examples/{example}.yaml", *arguments)
    assert said["status"] == "completed"
    assert said["error"] is None
    assert said["result"] == result
    assert sorted(said["steps"]) == sorted(steps)
    assert {(step["status"], step["runs"]) for step in said["steps"].values()} == {("completed", 1)}


def test_retries_and_recovery(run: Run) -> None:
    said = run("examples/retry.yaml")
    assert said["status"] == "completed"
    assert {name: step["status"] for name, step in said["steps"].items()} == {
        "flaky": "completed", "hopeless": "failed", "repair": "completed", "done": "completed",
    }  # fmt: skip
    assert "this never works" in said["ctx"]["reason"]


def test_a_failure_names_its_cause_and_step(tmp_path: Path, run: Run, noetl: Noetl) -> None:
    file = playbook(
        tmp_path,
        "  - step: bad\n    tool: {kind: python, code: 'raise ValueError(\"no thermometer\")'}\n",
    )
    said = run(file)
    assert said["status"] == "failed"
    assert said["error"]["step"] == "bad"
    assert "no thermometer" in said["error"]["message"]
    assert said["result"] is None
    shown = noetl("run", "--memory", file)
    assert shown.code == 1
    assert "no thermometer" in shown.out
    assert (
        'traceback:\n  Traceback (most recent call last):\n    File "<code>", line 1' in shown.out
    )
    assert "noetl/" not in shown.out + shown.err  # none of our own frames


def test_a_child_playbook_is_given_beside_it(tmp_path: Path, run: Run) -> None:
    child = playbook(
        tmp_path, "  - step: only\n    tool: {kind: python, code: 'result = 7'}\n", "child"
    )
    parent = playbook(
        tmp_path, "  - step: call\n    tool: {kind: playbook, path: child}\n", "parent"
    )
    said = run(parent, "--with", child)
    assert said["status"] == "completed"
    assert said["result"] == 7


def test_watching_shows_every_event(noetl: Noetl) -> None:
    shown = noetl("run", "--memory", "examples/hello.yaml", "--watch").out
    lines = [line.split() for line in shown.splitlines() if line[:5].strip().isdigit()]
    assert [int(line[0]) for line in lines] == list(range(1, len(lines) + 1))
    told = [line[2] for line in lines]
    assert told[:2] == ["playbook.initialized", "workflow.initialized"]
    assert told[-1] == "playbook.completed"
    assert told.count("step.enter") == 2
    assert "shout taken (" in shown


WRONG = [["no.yaml"], ["--memory", "no.yaml"], ["--memory", "examples/hello.yaml", "--set", "x"]]


@pytest.mark.parametrize("arguments", WRONG, ids=" ".join)
def test_wrong_use_is_a_sentence_and_exit_code_2(arguments: list[str], noetl: Noetl) -> None:
    done = noetl("run", *arguments)
    assert done.code == 2
    assert done.out == ""
    assert done.err.startswith("error: ")
    assert "Traceback" not in done.err


def test_a_playbook_with_errors_is_not_started(tmp_path: Path, noetl: Noetl) -> None:
    done = noetl(
        "run", "--memory", playbook(tmp_path, "  - step: a\n    tool: {kind: noop}\n    nxt: b\n")
    )
    assert done.code == 2
    assert ":7:5: error UNKNOWN_KEY unknown key `nxt`" in done.err


def test_it_is_a_module_too() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "noetl", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("noetl 0.")
