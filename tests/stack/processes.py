"""One server or worker as a process. It keeps its name, files and arguments when it is started again."""

import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.stack.command import ROOT
from tests.stack.fork_request import ForkRequest
from tests.stack.forking import RunningCommand, start_module
from tests.waiting import HANG_LIMIT_S, look_again

LOG_TAIL = 4_000  # characters
GRACE_S = 10.0  # for a process of a test that has failed


@dataclass
class NoetlProcess:
    """A process of `noetl` that writes its output to a log file.

    With `has_crash_points` it can be told to die at a point of the code: see `crash_points.py`.
    """

    name: str
    folder: Path
    arguments: tuple[str, ...]
    env: dict[str, str] = field(repr=False)
    has_crash_points: bool = False
    process: RunningCommand | None = None

    def start(self) -> None:
        self._began_file.unlink(missing_ok=True)
        program = ["noetl"]
        if self.has_crash_points:
            program = ["tests.stack.crash_points", str(self._order_file)]
        module, *arguments = [*program, *self.arguments]
        request = ForkRequest(module, arguments, str(ROOT), self.env)
        with self.log_file.open("ab") as log:
            self.process = start_module(request, stdout=log.fileno(), stderr=log.fileno())

    @property
    def log_file(self) -> Path:
        return self.folder / f"{self.name}.log"

    @property
    def _order_file(self) -> Path:
        return self.folder / self.name

    @property
    def _began_file(self) -> Path:
        return self.folder / f"{self.name}.began"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def is_alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def began_at(self) -> float:
        """The monotonic time when the present process had loaded its modules; infinity before that."""
        try:
            return float(self._began_file.read_text() or "inf")
        except FileNotFoundError:
            return float("inf")

    def die_at(self, point: str, nth: int) -> None:
        """Let it kill itself at the nth passing of that point from now on."""
        assert self.has_crash_points
        draft = self.folder / f"{self.name}.draft"
        draft.write_text(f"{point} {nth}")
        draft.rename(self._order_file)

    def forget_order(self) -> None:
        self._order_file.unlink(missing_ok=True)

    async def wait_for_crash(self) -> None:
        """Return when it has died by SIGKILL. It must not end in another way."""
        end = time.monotonic() + HANG_LIMIT_S
        while self.is_alive:
            assert time.monotonic() < end, (
                f"{self.name} lives on: {self._order_file.read_text()} was not passed"
            )
            await look_again()
        assert self.process is not None
        assert self.process.returncode == -signal.SIGKILL, self.describe()

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """Let it end in order."""
        if self.is_alive:
            self.ask_to_stop()
            self.wait_for_end()

    def ask_to_stop(self) -> None:
        assert self.process is not None
        self.forget_order()
        self.process.terminate()

    def wait_for_end(self) -> None:
        assert self.process is not None
        assert self.process.wait(HANG_LIMIT_S) == 0, self.describe()

    def abandon(self) -> None:
        """End it in any way: in order if it does so at once."""
        if not self.is_alive:
            return
        assert self.process is not None
        self.process.terminate()
        try:
            self.process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def read_log(self) -> str:
        return self.log_file.read_text(errors="replace")

    def describe(self) -> str:
        """Its name, how it ended, and the end of its log."""
        code = None if self.process is None else self.process.poll()
        state = "runs" if code is None else f"ended with code {code}"
        return f"{self.name} {state}; its log:\n{self.read_log()[-LOG_TAIL:]}"
