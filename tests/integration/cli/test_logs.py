"""Step logs through real processes: a server, workers with homes of their own, and commands that read."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.stack import NoetlCommand, Stack, run_stack, write_playbook

STEP = """
  - step: talk
    tool:
      kind: python
      code: |
        import os, time
        print("attempt of", os.getpid())
        while not os.path.exists({go!r}):
            time.sleep(0.01)
        print("ended")
"""


@pytest.fixture
def stack(noetl: NoetlCommand) -> Iterator[Stack]:
    """A server with a home that no worker here shares."""
    with run_stack(noetl.with_env(NOETL_WORKER_DRAIN_SEC="0")) as running:
        yield running


@pytest.fixture
def client(stack: Stack) -> NoetlCommand:
    return stack.client


@pytest.fixture
def worker_home(tmp_path: Path) -> Path:
    return tmp_path / "apart"


def prints(folder: Path, name: str) -> tuple[Path, Path]:
    """A playbook, and the file that lets it go on."""
    go = folder / "go"
    return write_playbook(folder, name, STEP.format(go=str(go))), go


def read_row(process: "subprocess.Popen[str]") -> dict[str, Any]:
    assert process.stdout is not None
    row: dict[str, Any] = json.loads(process.stdout.readline())
    return row


def start_run(client: NoetlCommand, file: Path) -> "tuple[subprocess.Popen[str], str]":
    running = client.start("run", file, "--json")
    while not (rows := client.json("exec", "list", "--path", file.stem)):
        pass
    return running, str(rows[0]["execution_id"])


def test_lines_are_seen_while_the_step_runs_after_its_end_and_without_its_worker(
    stack: Stack, client: NoetlCommand, worker_home: Path, tmp_path: Path
) -> None:
    file, go = prints(tmp_path, "seen")
    with stack.run_worker(NOETL_HOME=str(worker_home)):
        running, execution_id = start_run(client, file)
        following = client.start("exec", "logs", execution_id, "--follow", "--json")
        assert read_row(following)["line"].startswith("attempt of")
        assert client.json("exec", "get", execution_id)["status"] == "running"
        assert client.json("exec", "logs", execution_id, "--step", "talk")["seq"] == 1
        go.touch()
        assert client.wait(running).json["status"] == "completed"
        assert [json.loads(line)["line"] for line in client.wait(following).out.splitlines()] == [
            "ended"
        ]
    shutil.rmtree(worker_home)
    said = client("exec", "logs", execution_id)
    assert [line.partition(" ")[0] for line in said.out.splitlines()] == ["talk", "talk"]
    assert "talk | ended" in said.out
    other = client("exec", "logs", execution_id, "--step", "other")
    assert (other.code, other.out) == (2, "")
    assert "steps: talk" in other.err


def test_run_prints_lines_in_order_as_they_come(
    stack: Stack, client: NoetlCommand, worker_home: Path, tmp_path: Path
) -> None:
    file, go = prints(tmp_path, "ordered")
    with stack.run_worker(NOETL_HOME=str(worker_home)):
        running = client.start("run", file, "--logs")
        assert running.stdout is not None
        assert running.stdout.readline().startswith("talk | attempt of")
        go.touch()
        assert client.wait(running).out.startswith("talk | ended\n✓")


def test_a_worker_that_is_killed_loses_no_line_that_was_seen_and_the_next_attempt_counts_anew(
    stack: Stack, client: NoetlCommand, worker_home: Path, tmp_path: Path
) -> None:
    file, go = prints(tmp_path, "killed")
    worker = stack.start_worker(NOETL_HOME=str(worker_home))
    running, execution_id = start_run(client, file)
    following = client.start("exec", "logs", execution_id, "--follow", "--json")
    first = read_row(following)
    worker.kill()
    shutil.rmtree(worker_home)
    with stack.run_worker(NOETL_HOME=str(worker_home)):
        second = read_row(following)
        go.touch()
        assert client.wait(running).json["status"] == "completed"
    rows = [first, second, *(json.loads(line) for line in client.wait(following).out.splitlines())]
    assert [(row["attempt"], row["seq"], row["line"].partition(" ")[0]) for row in rows] == [
        (1, 1, "attempt"),
        (2, 1, "attempt"),
        (2, 2, "ended"),
    ]
    assert first["line"] != second["line"]


def test_a_worker_that_is_told_to_stop_hands_its_step_back(
    stack: Stack, client: NoetlCommand, worker_home: Path, tmp_path: Path
) -> None:
    file, go = prints(tmp_path, "returned")
    with stack.run_worker(NOETL_HOME=str(worker_home)):
        running, execution_id = start_run(client, file)
        following = client.start("exec", "logs", execution_id, "--follow", "--json")
        read_row(following)
    with stack.run_worker(NOETL_HOME=str(worker_home)):
        assert read_row(following)["attempt"] == 2
        go.touch()
        assert client.wait(running).json["status"] == "completed"
    client.wait(following)
    types = [
        json.loads(line)["type"]
        for line in client("exec", "events", execution_id, "--json").out.splitlines()
    ]
    assert "command.returned" in types
    assert "command.reclaimed" not in types


def test_embedded_and_in_memory_it_is_the_same(noetl: NoetlCommand, tmp_path: Path) -> None:
    file, go = prints(tmp_path, "here")
    go.touch()
    for memory in ([], ["--memory"]):
        said = noetl("run", file, "--logs", *memory)
        lines = said.out.splitlines()
        assert lines[0].startswith("talk | attempt of"), said.err
        assert lines[1] == "talk | ended"
    said = noetl("run", file, "--logs", "--json")
    assert said.json["status"] == "completed"
    assert said.err.endswith("talk | ended\n")
    assert noetl("exec", "logs", "@latest", "--follow").out.splitlines()[-1] == "talk | ended"
