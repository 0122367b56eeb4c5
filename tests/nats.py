"""A NATS server with JetStream for tests: one per test process, started at first use.

server().url                       # NOETL_NATS_URL
server().stop(); server().start()  # at the same address, with nothing in it
"""

import atexit
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from functools import cache
from itertools import count
from pathlib import Path

from tests.processes import free_port
from tests.s3 import ENDS_WITH_US
from tests.waiting import until

LIMIT = 4 << 20  # bytes of a bucket
PREFIX = "noetl-test-nats-"
_numbers = count(1)


class Nats:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"nats://127.0.0.1:{self._port}"

    def start(self) -> None:
        """It takes connections when this returns."""
        if self._process is not None:
            return
        self._process = subprocess.Popen(
            ["sh", "-c", ENDS_WITH_US, "sh", Path(sys.executable).parent / "nats-server", "--jetstream",
             "--addr", "127.0.0.1", "--port", str(self._port), "--store_dir", str(self._folder)],
            env={"PATH": os.defpath, "HOME": str(self._folder), "GOMAXPROCS": "2"},
            stdin=subprocess.PIPE, stdout=(self._folder / "out").open("ab"), stderr=subprocess.STDOUT,
            cwd=self._folder, start_new_session=True,
        )  # fmt: skip
        until(self._answers)

    def stop(self) -> None:
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def freeze(self) -> None:
        """It takes requests and answers none."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGSTOP)

    def bucket(self) -> str:
        """A name that nobody else uses."""
        return f"test_{next(_numbers)}"

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self._folder / "out").read_text()[-2000:]
        try:
            with socket.create_connection(("127.0.0.1", self._port), timeout=1) as probe:
                return probe.recv(4) == b"INFO"
        except OSError:
            return False


@cache
def server() -> Nats:
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    made = Nats(folder)

    def end() -> None:
        made.stop()
        shutil.rmtree(folder, ignore_errors=True)

    atexit.register(end)
    made.start()
    return made
