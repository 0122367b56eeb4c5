"""Postgres as a child of whoever came first.

Processes that share a home share one server. The first one starts it, the others attach; it ends with its parent. Whoever
outlives the parent asks again: `ensure()` is both "start it" and "is it still there", and costs a few milliseconds when it is.

Two locks decide everything, both released by the kernel however their holder dies:

- `home/postgres.lock` is held while somebody looks, makes, starts;
- the data directory itself is locked through a file that the server and all its processes inherit. So "locked" means that
  a process may still touch the data, and "free" that a `postmaster.pid` is a leftover, whoever owns that number now.
"""

import asyncio
import errno
import fcntl
import os
import random
import signal
import socket
import struct
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from subprocess import Popen

from noetl.embedded import external
from noetl.embedded import home as homes
from noetl.embedded.binaries import PostgresBinaries, find
from noetl.embedded.cluster import CONTROL, DATA, PostgresCluster
from noetl.embedded.process import (
    LINUX,
    Account,
    alive,
    directory_name,
    server_account,
    serves,
    spawn,
    watcher,
)
from noetl.model.errors import Unavailable

PATIENCE_SEC = 120.0  # recovery after a crash may read a gigabyte of log
ORPHANS_SEC = 30.0
ANSWER_SEC = 2.0
SSL_REQUEST = struct.pack(
    "!ii", 8, 80_877_103
)  # every Postgres answers this one with a single letter
STOP_SEC = 60.0
PORTS = range(
    20_000, 30_000
)  # below the ephemeral ones, so that a client's connection rarely takes ours
PORT_TRIES = 8
LOG_LIMIT = 16 << 20

SETTINGS: Mapping[str, str] = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",  # TCP only: JDBC speaks nothing else, and it costs the same
    "cluster_name": "noetl",
    "max_connections": "100",
    "shared_buffers": "128MB",
    "huge_pages": "off",
    "fsync": "on",
    "synchronous_commit": "on",
    "wal_level": "minimal",  # one machine, no replicas
    "max_wal_senders": "0",
    "max_logical_replication_workers": "0",
    "min_wal_size": "64MB",
    "max_wal_size": "1GB",
    "checkpoint_timeout": "15min",
    "random_page_cost": "1.1",
    "jit": "off",  # our statements are short
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_checkpoints": "off",
    "log_min_error_statement": "panic",  # statements and details carry users' data: they go to the client, not to a file
    "log_error_verbosity": "terse",
}
SINCE_18: Mapping[str, str] = {"io_method": "sync"}  # three processes less


@dataclass(frozen=True, slots=True)
class Dsns:
    """Addresses with passwords, hence without a `repr`. `data` is None when the database is not ours to divide."""

    control: str = field(repr=False)
    data: str | None = field(repr=False)


@dataclass(frozen=True, slots=True)
class Postmaster:
    """What a running server says of itself in `postmaster.pid`."""

    pid: int
    port: int
    ready: bool


class PostgresProcess:
    """A server that is our child.

    The kernel ties it to the thread that forked it, not to the process, so one thread forks, waits, and does nothing else.
    """

    def __init__(self, command: list[str], account: Account | None, opened: int, log: Path) -> None:
        self.owner = os.getpid()
        self.ended = threading.Event()
        born: Future[Popen[bytes]] = Future()
        threading.Thread(
            target=self.keep,
            args=(command, account, opened, log, born),
            name="postgres",
            daemon=True,
        ).start()
        self.process = born.result()

    def keep(
        self,
        command: list[str],
        account: Account | None,
        opened: int,
        log: Path,
        born: Future[Popen[bytes]],
    ) -> None:
        guard: Popen[bytes] | None = None
        try:
            with os.fdopen(
                os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab"
            ) as file:
                process = spawn(
                    command, account, opened=opened, last=signal.SIGINT, stdout=file, stderr=file
                )
            guard = None if LINUX else watcher(process.pid)
        except BaseException as error:
            born.set_exception(error)
            return
        born.set_result(process)
        process.wait()
        if guard is not None:
            guard.kill()
            guard.communicate()
        self.ended.set()

    def stop(self) -> None:
        """Fast shutdown: sessions are cut, what is committed is written down."""
        if self.owner != os.getpid():  # a forked copy of us is not its parent
            return
        for how in (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL):
            self.process.send_signal(how)
            if self.ended.wait(STOP_SEC):
                return


class Embedded:
    """The Postgres of one home."""

    def __init__(self, home: Path, settings: Mapping[str, str] | None = None) -> None:
        self.home = home.absolute()
        self.cluster = PostgresCluster(self.home)
        self.settings = {**SETTINGS, **(settings or {})}
        self.log = self.home / "postgres.log"
        self.server: PostgresProcess | None = None

    async def ensure(self) -> Dsns:
        return await asyncio.to_thread(self.serve)

    async def stop(self) -> None:
        """Ends the server when it is ours; one that another process started goes on."""
        await asyncio.to_thread(self.halt)

    def serve(self) -> Dsns:
        homes.prepare(self.home)
        with homes.explained(self.home), held(self.home / "postgres.lock"):
            if self.cluster.major() is None:
                self.make()
            with claimed(self.cluster.data) as claim:
                return self.dsns(claim.port if isinstance(claim, Postmaster) else self.start(claim))

    def halt(self) -> None:
        server, self.server = self.server, None
        if server is not None:
            server.stop()

    def make(self) -> None:
        account = server_account(self.cluster.data)
        self.cluster.create(find(account), account, synced=self.settings["fsync"] == "on")

    def start(self, opened: int) -> int:
        account = server_account(self.cluster.data)
        runtime = find(account, self.cluster.major())
        forget_leftover(self.cluster.data)
        rotate(self.log)
        for port in free_ports(self.cluster.last_port()):
            before = self.log.stat().st_size if self.log.exists() else 0
            server = PostgresProcess(
                self.command(runtime, account, opened, port), account, opened, self.log
            )
            if self.comes_up(server):
                self.server = server
                self.cluster.keep_port(port)
                return port
            complaints = self.complaints(before)
            if os.strerror(errno.EADDRINUSE) not in complaints:
                raise self.failed(complaints)
        raise Unavailable(
            f"no free port for Postgres on 127.0.0.1 between {PORTS.start} and {PORTS.stop}",
            hint="close what listens there, or set NOETL_DB_URL to a database of yours",
        )

    def command(
        self, runtime: PostgresBinaries, account: Account | None, opened: int, port: int
    ) -> list[str]:
        settings = {**(SINCE_18 if runtime.major >= 18 else {}), **self.settings, "port": str(port)}
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return [
            runtime.program("postgres"),
            "-D",
            directory_name(self.cluster.data, opened, account),
            *options,
        ]

    def comes_up(self, server: PostgresProcess) -> bool:
        end = time.monotonic() + PATIENCE_SEC
        while time.monotonic() < end:
            said = read_postmaster(self.cluster.data)
            if said is not None and said.pid == server.process.pid and said.ready:
                return True
            if server.ended.wait(0.005):
                return False
        server.stop()
        return False

    def complaints(self, begin: int) -> str:
        with self.log.open("rb") as file:
            file.seek(begin)
            lines = file.read().decode(errors="replace").splitlines()
        serious = [
            line for line in lines if "FATAL:" in line or "PANIC:" in line or "could not" in line
        ]
        return "\n".join(serious or lines[-3:])

    def failed(self, complaints: str) -> Unavailable:
        if os.strerror(errno.ENOSPC) in complaints:
            return homes.full(self.home, complaints)
        return Unavailable(
            f"Postgres did not start: {complaints or 'it ended without a word'}",
            hint=f"{self.log} has the details",
        )

    def dsns(self, port: int) -> Dsns:
        passwords = self.cluster.passwords()
        return Dsns(
            *(
                f"postgresql://{role}:{passwords[role]}@127.0.0.1:{port}/{role}"
                for role in (CONTROL, DATA)
            )
        )


@contextmanager
def held(lock: Path) -> Iterator[None]:
    """The right to look, make and start. Whoever waits here will usually find everything done."""
    opened = os.open(lock, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        end = time.monotonic() + PATIENCE_SEC
        while not try_lock(opened, lock):
            if time.monotonic() > end:
                raise Unavailable(
                    f"another process has been starting the database of {lock.parent} for {PATIENCE_SEC:.0f} s",
                    hint=f"look at {lock.parent / 'postgres.log'}; end that process if it hangs",
                )
            time.sleep(0.01)
        yield
    finally:
        os.close(opened)


@contextmanager
def claimed(data: Path) -> Iterator[int | Postmaster]:
    """The locked data directory, for a server to inherit; or the server that is up and has it."""
    opened = os.open(data, os.O_RDONLY | os.O_DIRECTORY)
    try:
        end = time.monotonic() + ORPHANS_SEC
        while not try_lock(opened, data):
            said = read_postmaster(data)
            if said is not None and said.ready and serves(said.pid, data) and answers(said.port):
                yield said
                return
            if (
                time.monotonic() > end
            ):  # it is stopping, or its processes outlive it, or it lives in another container
                raise Unavailable(
                    f"{data} is in use by a Postgres that does not answer here",
                    hint="end what uses it (another container with this NOETL_HOME?), or set another NOETL_HOME",
                )
            time.sleep(0.01)
        yield opened
    finally:
        os.close(opened)  # not unlocked: a server that inherited it keeps the lock


def try_lock(opened: int, path: Path) -> bool:
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise homes.HomeUnusable(
            f"{path} cannot be locked: {error.strerror}",
            hint="set NOETL_HOME to a directory on a local disk",
        ) from error
    return True


def read_postmaster(data: Path) -> Postmaster | None:
    try:
        lines = (data / "postmaster.pid").read_text().splitlines()
        return Postmaster(
            int(lines[0]), int(lines[3]), len(lines) > 7 and lines[7].strip() == "ready"
        )
    except (FileNotFoundError, ValueError, IndexError):  # none, or being written
        return None


def forget_leftover(data: Path) -> None:
    """The lock is ours, so no server of ours lives. A number that somebody else has now would keep Postgres from starting;
    a Postgres behind it was started by hand, and Postgres itself will say so."""
    file = data / "postmaster.pid"
    try:
        pid = int(file.read_text().split(maxsplit=1)[0])
    except FileNotFoundError:
        return
    except (ValueError, IndexError):
        pid = 0
    if pid == 0 or (alive(pid) and not serves(pid, data)):
        file.unlink(missing_ok=True)


def free_ports(last: int | None) -> Iterator[int]:
    """A few to try. The last one first: clients then find the server again without asking."""
    choices = [*([last] if last else []), *random.sample(PORTS, 64)]
    return islice((port for port in choices if is_free(port)), PORT_TRIES)


def answers(port: int) -> bool:
    """Whether a server takes sessions. One with a signal to die on its way looks alive, and would be nobody's to start again."""
    with socket.socket() as probe:
        probe.settimeout(ANSWER_SEC)
        try:
            probe.connect(("127.0.0.1", port))
            probe.sendall(SSL_REQUEST)
            return probe.recv(1) in (b"S", b"N")
        except OSError:
            return False


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as Postgres does
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def rotate(log: Path) -> None:
    if log.exists() and log.stat().st_size > LOG_LIMIT:
        log.replace(log.with_suffix(".log.1"))


# The children of a process are a fact of the process: whoever asks for one home in it means the same server.
_HOMES: dict[Path, Embedded] = {}


def address(home: Path) -> str | None:
    """Where the database for users' tables of this home is, or will be again. None: there is none yet."""
    embedded = Embedded(home)
    port = embedded.cluster.last_port()
    return None if port is None else embedded.dsns(port).data


async def ensure(home: Path | None = None) -> Dsns:
    """Addresses that work now: of the database at `NOETL_DB_URL`, else of the one in home, started if need be."""
    if url := os.environ.get("NOETL_DB_URL"):
        await external.check(url)
        return Dsns(url, None)
    where = (home or homes.locate()).absolute()
    return await _HOMES.setdefault(where, Embedded(where)).ensure()


async def stop() -> None:
    """End every server that this process started."""
    await asyncio.gather(*(embedded.stop() for embedded in _HOMES.values()))
