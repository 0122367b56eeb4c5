"""`NOETL_HOME/spark`: where the Spark server of this machine says how to reach it, and who uses it.

server.json   address, token and process; there while it answers
server.lock   held by the process that serves
start.lock    held by whoever starts one
use           shared by commands that are at work; touched when one ends, so its age is how long nobody worked
server.log    what Spark says
"""

import fcntl
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

REACH = 1.0  # seconds for a server of this machine to take a connection


@dataclass(frozen=True, slots=True)
class Served:
    """A server that answers. `pid` is of the process that looks after it."""

    port: int
    token: str
    pid: int
    java: int
    cluster: str | None = None

    @property
    def url(self) -> str:
        # by this name, and no other, PySpark sends a token without TLS
        return f"sc://localhost:{self.port}/;token={self.token}"

    def answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), REACH):
                return True
        except OSError:
            return False


@dataclass(frozen=True, slots=True)
class SparkPlace:
    folder: Path

    @classmethod
    def below(cls, home: Path) -> "SparkPlace":
        folder = home / "spark"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return cls(folder)

    @property
    def log(self) -> Path:
        return self.folder / "server.log"

    # ---- who serves ------------------------------------------------------------------------------------------------------

    def served(self) -> Served | None:
        try:
            return Served(**json.loads((self.folder / "server.json").read_bytes()))
        except (FileNotFoundError, ValueError, TypeError):
            return None

    def publish(self, served: Served) -> None:
        """For this user alone: whoever has the token may run anything as us."""
        part = self.folder / ".server.json"
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            json.dump(asdict(served), file)
        (self.folder / "use").touch(0o600)  # it has not been idle for as long as there was none
        part.rename(self.folder / "server.json")

    def withdraw(self) -> None:
        with suppress(FileNotFoundError):
            (self.folder / "server.json").unlink()

    # ---- locks -----------------------------------------------------------------------------------------------------------

    @contextmanager
    def locked(self, name: str, how: int = fcntl.LOCK_EX) -> Iterator[bool]:
        """False: somebody else has it, and `how` said not to wait."""
        with self._opened(name) as descriptor:
            try:
                fcntl.flock(descriptor, how)
            except BlockingIOError:
                yield False
                return
            yield True

    def use(self) -> int:
        """A descriptor; the server is in use until it is closed, however that happens."""
        descriptor = os.open(self.folder / "use", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        os.utime(descriptor)
        return descriptor

    def leave(self, descriptor: int) -> None:
        os.utime(descriptor)
        os.close(descriptor)

    @contextmanager
    def unused(self, now: float, idle: float) -> Iterator[bool]:
        """True: nobody has used it for so long, and nobody can begin to while this lasts."""
        with self._opened("use") as descriptor:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            yield now - os.fstat(descriptor).st_mtime >= idle

    @contextmanager
    def _opened(self, name: str) -> Iterator[int]:
        descriptor = os.open(self.folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            yield descriptor
        finally:
            os.close(descriptor)
