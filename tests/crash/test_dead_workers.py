"""A worker process that is gone loses its commands at once, and one that only stands still keeps them.

Leases last five minutes here: a test that had to wait for one would take too long.
"""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from tests.postgres import server
from tests.processes import free_port
from tests.stack import NoetlCommand, NoetlProcess, Stack, run_stack, temporary_home
from tests.stack.stack import wait_until_ready
from tests.waiting import until

LONG_LEASES = {"NOETL_SHARD_LEASE_SEC": "300"}
LIMIT_S = 100.0  # much less than a lease
# The first attempt waits for `go`, which no test makes before it has killed the process.
LASTS = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {{name: {name}, path: crash/{name}}}
workflow:
  - step: lasts
    tool:
      kind: python
      code: |
        import os, time
        with open({begun!r}, "a") as file:
            file.write("begun\\n")
        while not os.path.exists({go!r}):
            time.sleep(0.01)
        result = 1
    next: after
  - step: after
    tool:
      kind: python
      input: {{one: "{{{{ lasts }}}}"}}
      code: |
        open({done!r}, "w").close()
        result = one + 1
"""
WAITS = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {{name: waits, path: crash/waits}}
workflow:
  - step: waits
    tool:
      kind: python
      code: |
        import os, time
        while not os.path.exists({done!r}):
            time.sleep(0.01)
        result = 1
"""


class LastingStep:
    """A playbook whose first step lasts until the test says go, and the files that it leaves."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        self.begun = folder / f"{name}.begun"
        self.go = folder / f"{name}.go"
        self.done = folder / f"{name}.done"
        self.file = folder / f"{name}.yaml"
        paths = {"begun": str(self.begun), "go": str(self.go), "done": str(self.done)}
        self.file.write_text(LASTS.format(name=name, **paths))

    def count_begun(self) -> int:
        return len(self.begun.read_text().splitlines()) if self.begun.exists() else 0

    def start(self, noetl: NoetlCommand, url: str) -> str:
        with httpx.Client(base_url=url, trust_env=False, headers=noetl.token_header) as http:
            http.post(
                "/api/catalog/register", json={"content": self.file.read_text()}
            ).raise_for_status()
            started = http.post("/api/execute", json={"path": f"crash/{self.name}"})
            execution_id: str = started.raise_for_status().json()["execution_id"]
            return execution_id


@pytest.fixture
def dsn() -> Iterator[str]:
    with server().database() as address:
        yield address


@pytest.fixture
def noetl(dsn: str) -> Iterator[NoetlCommand]:
    with temporary_home("dead", has_database=False) as home:
        yield NoetlCommand(home).with_env(**LONG_LEASES, NOETL_DB_URL=dsn)


@contextmanager
def run_dev(noetl: NoetlCommand, folder: Path) -> Iterator[tuple[NoetlProcess, str]]:
    port = free_port()
    playbooks = folder / "playbooks"
    playbooks.mkdir()
    arguments = ("dev", str(playbooks), "--port", str(port))
    process = NoetlProcess("dev", folder, arguments, noetl.environment)
    process.start()
    try:
        wait_for_dev(process, port)
        yield process, f"http://127.0.0.1:{port}"
        process.stop()
    finally:
        process.abandon()


def wait_for_dev(process: NoetlProcess, port: int) -> None:
    def is_alive() -> None:
        assert process.is_alive, process.describe()

    wait_until_ready(f"http://127.0.0.1:{port}", is_alive)


def read_status(dsn: str, execution_id: str) -> str | None:
    return read_value(
        dsn, "select status from noetl.execution where execution_id = %s", execution_id
    )


def read_attempts(dsn: str, step: str) -> list[int]:
    """The last attempt of each command of the step, in the order in which they were issued."""
    with psycopg.connect(dsn) as connection:
        rows = connection.execute(
            "select max(coalesce(attempt, 1)) from noetl.event where step = %s and command_id is not null"
            " group by command_id order by min(at)",
            [step],
        )
        return [row[0] for row in rows]


def read_value(dsn: str, query: str, *values: object) -> Any:
    with psycopg.connect(dsn) as connection:
        row = connection.execute(query, values).fetchone()  # type: ignore[arg-type]  # our own text
        return None if row is None else row[0]


def has_completed(dsn: str, execution_id: str) -> Callable[[], bool]:
    return lambda: read_status(dsn, execution_id) == "completed"


def test_dev_that_is_killed_goes_on_when_it_is_started_again(
    noetl: NoetlCommand, dsn: str, tmp_path: Path
) -> None:
    step = LastingStep(tmp_path, "lasts")
    with run_dev(noetl, tmp_path) as (process, url):
        execution_id = step.start(noetl, url)
        until(step.begun.exists, LIMIT_S)
        process.kill()
        step.go.touch()
        process.start()
        until(has_completed(dsn, execution_id), LIMIT_S)
    assert read_attempts(dsn, "lasts") == [2]


def test_dev_with_an_embedded_database_goes_on_when_both_are_killed(tmp_path: Path) -> None:
    """The database ends with the process that started it, and so forgets which servers were connected."""
    step = LastingStep(tmp_path, "lasts")
    with temporary_home("dead") as home:
        noetl = NoetlCommand(home).with_env(**LONG_LEASES)
        with run_dev(noetl, tmp_path) as (process, url):
            execution_id = step.start(noetl, url)
            until(step.begun.exists, LIMIT_S)
            process.kill()
            step.go.touch()
            process.start()
            until(step.done.exists, LIMIT_S)
            client = noetl.and_env(NOETL_SERVER_URL=url)
            until(lambda: client.json("exec", "get", execution_id)["status"] == "completed")
        assert list((home / "servers").iterdir()) == []


def test_what_a_killed_run_has_begun_is_finished_by_the_next_run(
    noetl: NoetlCommand, dsn: str, tmp_path: Path
) -> None:
    step = LastingStep(tmp_path, "lasts")
    waits = tmp_path / "waits.yaml"
    waits.write_text(WAITS.format(done=str(step.done)))
    first = noetl.start("run", step.file)
    until(step.begun.exists, LIMIT_S)
    first.kill()
    noetl.wait(first)
    step.go.touch()
    # It ends when the execution of the killed run has passed its first step.
    assert noetl.json("run", waits)["status"] == "completed"
    assert read_attempts(dsn, "lasts") == [2]


def test_what_a_killed_run_has_begun_is_finished_by_a_server_that_runs(
    noetl: NoetlCommand, dsn: str, tmp_path: Path
) -> None:
    step = LastingStep(tmp_path, "lasts")
    first = noetl.start("run", step.file)
    until(step.begun.exists, LIMIT_S)
    with run_dev(noetl, tmp_path):
        assert read_attempts(dsn, "lasts") == [1]
        first.kill()
        noetl.wait(first)
        step.go.touch()
        until(step.done.exists, LIMIT_S)
    assert read_attempts(dsn, "lasts") == [2]


def test_server_and_worker_that_are_killed_together_go_on(
    noetl: NoetlCommand, dsn: str, tmp_path: Path
) -> None:
    step = LastingStep(tmp_path, "lasts")
    with run_stack(noetl, workers=1) as stack:
        execution_id = step.start(stack.command, stack.url)
        until(step.begun.exists, LIMIT_S)
        stack.worker.kill()
        stack.server.kill()
        step.go.touch()
        stack.restart_dead()
        until(has_completed(dsn, execution_id), LIMIT_S)
    assert read_attempts(dsn, "lasts") == [2]


def test_worker_that_stands_still_keeps_its_command(
    noetl: NoetlCommand, dsn: str, tmp_path: Path
) -> None:
    """While a worker is stopped, another one is killed: the servers notice the second and not the first."""
    still = LastingStep(tmp_path, "still")
    killed = LastingStep(tmp_path, "killed")
    with run_stack(noetl, workers=1, slots=1) as stack:
        execution_id = still.start(stack.command, stack.url)
        until(still.begun.exists, LIMIT_S)
        os.kill(stack.worker.pid, signal.SIGSTOP)
        try:
            lose_another_worker(stack, killed)
            assert read_attempts(dsn, "lasts") == [1, 2]
        finally:
            os.kill(stack.worker.pid, signal.SIGCONT)
        still.go.touch()
        until(has_completed(dsn, execution_id), LIMIT_S)
    assert still.count_begun() == 1
    assert read_attempts(dsn, "lasts") == [1, 2]


def lose_another_worker(stack: Stack, step: LastingStep) -> None:
    """Kill a worker, and return when its command has been run by a third one."""
    other = stack.start_worker("other")
    step.start(stack.command, stack.url)
    until(step.begun.exists, LIMIT_S)
    other.kill()
    with stack.run_worker("third"):
        step.go.touch()
        until(step.done.exists, LIMIT_S)
    del stack.processes["other"]
