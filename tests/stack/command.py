"""The `noetl` command as its users have it: a process in a home of its own."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from noetl.runtime.token_files import read_token_file
from tests.processes import environment
from tests.stack.fork_request import ForkRequest
from tests.stack.forking import RunningCommand, start_module
from tests.waiting import HANG_LIMIT_S

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class CommandOutput:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@dataclass(frozen=True)
class NoetlCommand:
    """Runs `noetl` with this home and these settings. Nothing of the caller's environment starts with NOETL_."""

    home: Path
    more: tuple[tuple[str, str], ...] = ()

    def with_env(self, **more: str) -> "NoetlCommand":
        """The same command with these settings alone."""
        return replace(self, more=tuple(more.items()))

    def and_env(self, **more: str) -> "NoetlCommand":
        """The same command with these settings added."""
        return replace(self, more=(*self.more, *more.items()))

    @property
    def settings(self) -> dict[str, str]:
        return dict(self.more)

    @property
    def environment(self) -> dict[str, str]:
        return environment(**{"NOETL_HOME": str(self.home), **self.settings})

    @property
    def token(self) -> str:
        """The token with which the commands of this home call its servers."""
        token = read_token_file(self.home, "admin")
        assert token is not None, "no server has run on this home"
        return token

    @property
    def token_header(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}

    def __call__(self, *arguments: object) -> CommandOutput:
        return self.wait(self.start(*arguments))

    def json(self, *arguments: object, code: int = 0) -> Any:
        done = self(*arguments, "--json")
        assert done.code == code, done.err
        return done.json

    def run_with_input(self, text: str, *arguments: object) -> CommandOutput:
        process = self.start(*arguments, stdin=subprocess.PIPE)
        return self.wait(process, text)

    def start(self, *arguments: object, stdin: int | None = None) -> RunningCommand:
        request = ForkRequest("noetl", list(map(str, arguments)), str(ROOT), self.environment)
        return start_module(request, stdin=stdin)

    def start_python(self, *arguments: object, stdin: int | None = None) -> "subprocess.Popen[str]":
        """Start a process of Python that has loaded nothing."""
        return subprocess.Popen(
            [sys.executable, *map(str, arguments)],
            env=self.environment,
            cwd=ROOT,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def wait(
        self,
        process: RunningCommand,
        text: str | None = None,
        within: float = HANG_LIMIT_S,
    ) -> CommandOutput:
        out, err = process.communicate(text, timeout=within)
        return CommandOutput(process.returncode, out, err)

    @contextmanager
    def keep_running(self, *arguments: object) -> Iterator[RunningCommand]:
        """A command that runs until it gets SIGTERM. Its output can be read meanwhile."""
        process = self.start(*arguments)
        try:
            yield process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            done = self.wait(process)
            assert done.code == 0, done.err


def write_playbook(folder: Path, name: str, steps: str) -> Path:
    file = folder / f"{name}.yaml"
    file.write_text(
        f"apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {{name: {name}}}\nworkflow:\n{steps}"
    )
    return file
