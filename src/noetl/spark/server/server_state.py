"""The folder `NOETL_HOME/spark`: the address of this machine's Spark server, and its locks.

server.json   address, token and process id; exists while the server answers
server.lock   held by the process that serves
start.lock    held by a process that starts a server
use           shared lock of running commands; touched when one ends, so its age is the idle time
server.log    the log of Spark, without data of steps (log4j2.properties); 0600
"""

import fcntl
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

from noetl.private_folders import make_private_folder

PRIVATE_MODE = 0o600  # of files that only their owner reads
SERVER_CONNECT_TIMEOUT_S = 1.0  # seconds for a server of this machine to take a connection
_LOCK_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
_WRITE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class ServerRecord:
    """The record of a running server. `pid` is the process that supervises the JVM."""

    port: int
    token: str
    pid: int
    java: int
    cluster: str | None = None

    @property
    def url(self) -> str:
        # PySpark sends a token without TLS only to this host name.
        return f"sc://localhost:{self.port}/;token={self.token}"

    def takes_connections(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), SERVER_CONNECT_TIMEOUT_S):
                return True
        except OSError:
            return False


def open_private_file(path: Path) -> BinaryIO:
    """Open a new file for writing that this user alone may read. What was there is replaced."""
    descriptor = os.open(path, _WRITE_FLAGS, PRIVATE_MODE)
    os.fchmod(descriptor, PRIVATE_MODE)  # an older file keeps its mode otherwise
    return os.fdopen(descriptor, "wb")


@dataclass(frozen=True, slots=True)
class SparkServerState:
    folder: Path

    @classmethod
    def from_home(cls, home: Path) -> "SparkServerState":
        folder = home / "spark"
        make_private_folder(folder)
        return cls(folder)

    @property
    def log(self) -> Path:
        return self.folder / "server.log"

    # ---- the record of the server ----------------------------------------------------------------------------------------

    def read_server(self) -> ServerRecord | None:
        """The record of the server, or None if there is none."""
        try:
            return ServerRecord(**json.loads((self.folder / "server.json").read_bytes()))
        except (FileNotFoundError, ValueError, TypeError):
            return None

    def publish_server(self, served: ServerRecord) -> None:
        """Write the record, readable by this user only: the token lets a client run any code."""
        part = self.folder / ".server.json"
        with open_private_file(part) as file:
            file.write(json.dumps(asdict(served)).encode())
        (self.folder / "use").touch(0o600)  # the idle time starts now
        part.rename(self.folder / "server.json")

    def withdraw_server(self) -> None:
        with suppress(FileNotFoundError):
            (self.folder / "server.json").unlink()

    # ---- locks -----------------------------------------------------------------------------------------------------------

    @contextmanager
    def hold_lock(self, name: str, how: int = fcntl.LOCK_EX) -> Iterator[bool]:
        """Hold a lock. Yields False if another process holds it and `how` says not to wait."""
        with self._open_lock_file(name) as descriptor:
            try:
                fcntl.flock(descriptor, how)
            except BlockingIOError:
                yield False
                return
            yield True

    def begin_use(self) -> int:
        """Mark the server as used. It is in use until the returned descriptor is closed, also by
        the end of this process."""
        descriptor = os.open(self.folder / "use", _LOCK_FLAGS, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        os.utime(descriptor)
        return descriptor

    def end_use(self, descriptor: int) -> None:
        os.utime(descriptor)
        os.close(descriptor)

    @contextmanager
    def hold_if_unused(self, now: float, idle: float) -> Iterator[bool]:
        """Yields whether no command has used the server for `idle` seconds. While the block lasts,
        no command can begin to."""
        with self._open_lock_file("use") as descriptor:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            yield now - os.fstat(descriptor).st_mtime >= idle

    @contextmanager
    def _open_lock_file(self, name: str) -> Iterator[int]:
        descriptor = os.open(self.folder / name, _LOCK_FLAGS, 0o600)
        try:
            yield descriptor
        finally:
            os.close(descriptor)
