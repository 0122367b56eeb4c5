"""Programs of others that tests need as servers: each a process in a folder of its own, which ends with the test process."""

import atexit
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from tests.waiting import until

ENDS_WITH_US = '"$@" & read -r _; kill -9 $!'  # when nobody holds the pipe any more


class ServerProcess(ABC):
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def command(self) -> list[str]:
        """A program that stands beside our interpreter, and what it is told."""

    @abstractmethod
    def answers(self) -> bool: ...

    def environment(self) -> dict[str, str]:
        return {}

    def start(self) -> None:
        """It answers when this returns."""
        if self._process is not None:
            return
        program, *more = self.command()
        with (self.folder / "out").open("ab") as out:
            self._process = subprocess.Popen(
                ["sh", "-c", ENDS_WITH_US, "sh", Path(sys.executable).parent / program, *more],
                env={"PATH": os.defpath, "HOME": str(self.folder), "GOMAXPROCS": "2", **self.environment()},
                stdin=subprocess.PIPE, stdout=out, stderr=subprocess.STDOUT, cwd=self.folder, start_new_session=True,
            )  # fmt: skip
        until(self._alive_and_answers)

    def stop(self) -> None:
        """Stop at once: clients in the middle of a request get an error."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def freeze(self) -> None:
        """It takes requests and answers none."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGSTOP)

    @contextmanager
    def keep_frozen(self) -> Iterator[None]:
        assert self._process is not None
        self.freeze()
        try:
            yield
        finally:
            os.killpg(self._process.pid, signal.SIGCONT)

    def _alive_and_answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self.folder / "out").read_text()[-2000:]
        return self.answers()

    @classmethod
    def start_new(cls, prefix: str) -> Self:
        """One that ends when we do, and its folder with it."""
        folder = Path(tempfile.mkdtemp(prefix=prefix))
        made = cls(folder)
        atexit.register(_end_server, made.stop, folder)
        made.start()
        return made


def _end_server(stop: Callable[[], None], folder: Path) -> None:
    stop()
    shutil.rmtree(folder, ignore_errors=True)
