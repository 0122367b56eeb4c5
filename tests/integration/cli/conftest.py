"""The `noetl` command as its users have it: processes, a home of their own, a real database in it."""

import json
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from noetl.embedded import EmbeddedPostgres
from tests import processes
from tests.inspection import inspect
from tests.postgres import scratch
from tests.processes import environment
from tests.waiting import PATIENCE, until

ROOT = Path(__file__).parents[3]


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@dataclass(frozen=True)
class Noetl:
    home: Path
    more: tuple[tuple[str, str], ...] = ()

    def with_env(self, **more: str) -> "Noetl":
        return replace(self, more=tuple(more.items()))

    def and_env(self, **more: str) -> "Noetl":
        return replace(self, more=(*self.more, *more.items()))

    def __call__(self, *arguments: object) -> Done:
        return self.wait(self.start(*arguments))

    def json(self, *arguments: object, code: int = 0) -> Any:
        done = self(*arguments, "--json")
        assert done.code == code, done.err
        return done.json

    def fed(self, text: str, *arguments: object) -> Done:
        """With this on its standard input."""
        process = self.start(*arguments, stdin=subprocess.PIPE)
        return self.wait(process, text)

    def start(self, *arguments: object, stdin: int | None = None) -> "subprocess.Popen[str]":
        return self.start_python("-m", "noetl", *arguments, stdin=stdin)

    def start_python(self, *arguments: object, stdin: int | None = None) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, *map(str, arguments)],
            env=environment(NOETL_HOME=str(self.home), **dict(self.more)),
            cwd=ROOT,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def wait(
        self, process: "subprocess.Popen[str]", text: str | None = None, within: float = PATIENCE
    ) -> Done:
        out, err = process.communicate(text, timeout=within)
        return Done(process.returncode, out, err)

    @contextmanager
    def running(self, *arguments: object) -> Iterator["subprocess.Popen[str]"]:
        """A process that goes on until it is told to stop, in order."""
        process = self.start(*arguments)
        try:
            yield process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            done = self.wait(process)
            assert done.code == 0, done.err


@pytest.fixture(scope="module")
def noetl() -> Iterator[Noetl]:
    """One home for the tests of a file: making a database takes longer than they do."""
    home = Path(tempfile.mkdtemp(dir=scratch(), prefix="noetl-test-cli-"))
    yield Noetl(home)
    look_into(home)
    shutil.rmtree(home, ignore_errors=True)


def look_into(home: Path) -> None:
    """What the tests left in the database of this home."""
    embedded = EmbeddedPostgres(home)
    try:
        inspect(embedded.ensure_postgres().control)
    finally:
        embedded.stop_postgres()


@pytest.fixture
def free_port() -> int:
    return processes.free_port()


def ready(url: str) -> None:
    """Returns when the server there can work."""
    with httpx.Client(base_url=url, trust_env=False) as http:

        def works() -> bool:
            try:
                return http.get("/ready").is_success
            except httpx.HTTPError:
                return False

        until(works)


def playbook(folder: Path, name: str, steps: str) -> Path:
    file = folder / f"{name}.yaml"
    file.write_text(
        f"apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {{name: {name}}}\nworkflow:\n{steps}"
    )
    return file
