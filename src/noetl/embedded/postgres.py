"""Postgres as a child of the first process that needs it.

Processes that share a home share one server. The first process starts it, the others attach. The
server ends with its parent; processes that outlive the parent call `ensure()` again. `ensure()`
starts the server if it does not run, and takes a few milliseconds if it does.

Two locks coordinate the processes. The kernel releases both when their holder dies:

- A process holds `home/postgres.lock` while it looks for, creates or starts the server.
- The data directory is locked through an open file that the server and all its processes inherit.
  If it is locked, a process may still touch the data. If it is free, `postmaster.pid` is a
  leftover, even if another process has that pid now.
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

from msgspec import Struct

from noetl.embedded import external
from noetl.embedded import home as homes
from noetl.embedded.binaries import PostgresBinaries, find_postgres
from noetl.embedded.cluster import CONTROL_ROLE, DATA_ROLE, PostgresCluster
from noetl.embedded.process import (
    LINUX,
    Account,
    choose_server_account,
    get_directory_name,
    is_process_alive,
    is_server_of,
    spawn,
    start_watcher,
)
from noetl.model.errors import Unavailable
from noetl.postgres.roles import APP_ROLE

POSTGRES_START_TIMEOUT_S = 120.0  # for a start: recovery after a crash may read a gigabyte of log
ORPHANS_TIMEOUT_S = 30.0  # for the processes of a dead server to end
PROBE_TIMEOUT_S = 2.0
SSL_REQUEST = struct.pack("!ii", 8, 80_877_103)  # every Postgres answers it with one letter
POSTGRES_STOP_TIMEOUT_S = 60.0
PORTS = range(20_000, 30_000)  # below the ephemeral ports, which connections of clients take
MAX_PORT_TRIES = 8
MAX_LOG_BYTES = 16 << 20  # bytes

SETTINGS: Mapping[str, str] = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",  # TCP only: JDBC needs it, and it is as fast
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
    # Messages, statements, details and parameters may contain users' data: they go to the client, not
    # into a file. Above the level of errors are messages about the server as a whole.
    "log_min_messages": "log",
    "log_min_error_statement": "panic",
    "log_error_verbosity": "terse",
    "log_statement": "none",
    "log_min_duration_statement": "-1",
    "log_min_duration_sample": "-1",
    "log_parameter_max_length": "0",
    "log_parameter_max_length_on_error": "0",
    "log_autovacuum_min_duration": "-1",
    "log_lock_waits": "off",
}
SINCE_18: Mapping[str, str] = {"io_method": "sync"}  # saves three processes


@dataclass(frozen=True, slots=True)
class Dsns:
    """Addresses with passwords, therefore without a `repr`.

    `control` is for migrations and jobs over the log, `app` for servers. `app_role` is the role that
    servers take after they have connected; None: the login is the role. `data` is None for an external
    database.
    """

    control: str = field(repr=False)
    data: str | None = field(repr=False)
    app: str = field(repr=False)
    app_role: str | None = None


class Postmaster(Struct, frozen=True):
    """The content of a running server's `postmaster.pid`."""

    pid: int
    port: int
    ready: bool


class PostgresProcess:
    """A server that is a child of this process.

    The kernel ties the child to the thread that forked it, not to the process. So a thread of its
    own forks the server and waits for its end.
    """

    def __init__(
        self,
        command: list[str],
        account: Account | None,
        descriptor: int,
        log: Path,
    ) -> None:
        self.owner = os.getpid()
        self.ended = threading.Event()
        started: Future[Popen[bytes]] = Future()
        arguments = (command, account, descriptor, log, started)
        thread = threading.Thread(
            target=self.run_postgres, args=arguments, name="postgres", daemon=True
        )
        thread.start()
        self.process = started.result()

    def run_postgres(
        self,
        command: list[str],
        account: Account | None,
        descriptor: int,
        log: Path,
        started: Future[Popen[bytes]],
    ) -> None:
        """Start the server and wait until it ends. Runs in a thread of its own."""
        guard: Popen[bytes] | None = None
        try:
            log_file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            with os.fdopen(log_file, "ab") as file:
                process = spawn(
                    command,
                    account,
                    descriptor=descriptor,
                    death_signal=signal.SIGINT,
                    stdout=file,
                    stderr=file,
                )
            if not LINUX:
                guard = start_watcher(process.pid)
        except BaseException as error:
            started.set_exception(error)
            return
        started.set_result(process)
        process.wait()
        if guard is not None:
            guard.kill()
            guard.communicate()
        self.ended.set()

    def stop(self) -> None:
        """Shut down fast: end the sessions and write committed data to disk."""
        if self.owner != os.getpid():  # this is a fork of the parent, not the parent
            return
        for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL):
            self.process.send_signal(number)
            if self.ended.wait(POSTGRES_STOP_TIMEOUT_S):
                return


class EmbeddedPostgres:
    """The Postgres of one home."""

    def __init__(self, home: Path, settings: Mapping[str, str] | None = None) -> None:
        self.home = home.absolute()
        self.cluster = PostgresCluster(self.home)
        self.settings = {**SETTINGS, **(settings or {})}
        self.log = self.home / "postgres.log"
        self.server: PostgresProcess | None = None

    async def ensure(self) -> Dsns:
        return await asyncio.to_thread(self.ensure_postgres)

    async def stop(self) -> None:
        """End the server if this process started it. A server of another process continues."""
        await asyncio.to_thread(self.stop_postgres)

    def ensure_postgres(self) -> Dsns:
        """Attach to the running server, or start it; create the data directory first if needed."""
        homes.prepare_home(self.home)
        with homes.explain_errors(self.home), hold_start_lock(self.home / "postgres.lock"):
            if self.cluster.read_major() is None:
                self.create_cluster()
            with claim_data_directory(self.cluster.data) as claim:
                if isinstance(claim, Postmaster):
                    return self.make_dsns(claim.port)
                return self.make_dsns(self.start_postgres(claim))

    def stop_postgres(self) -> None:
        server, self.server = self.server, None
        if server is not None:
            server.stop()

    def create_cluster(self) -> None:
        account = choose_server_account(self.cluster.data)
        self.cluster.create(find_postgres(account), account, synced=self.settings["fsync"] == "on")

    def start_postgres(self, descriptor: int) -> int:
        """Start the server on a free port. Returns the port."""
        account = choose_server_account(self.cluster.data)
        runtime = find_postgres(account, self.cluster.read_major())
        forget_leftover(self.cluster.data)
        if APP_ROLE not in self.cluster.read_passwords():
            self.cluster.add_app_role(runtime, account, descriptor)
        rotate_log(self.log)
        for port in find_free_ports(self.cluster.read_last_port()):
            log_size = self.log.stat().st_size if self.log.exists() else 0
            command = self.make_postgres_command(runtime, account, descriptor, port)
            server = PostgresProcess(command, account, descriptor, self.log)
            if self.wait_for_postgres(server):
                self.server = server
                self.cluster.keep_port(port)
                return port
            complaints = self.read_complaints(log_size)
            if os.strerror(errno.EADDRINUSE) not in complaints:
                raise self.make_start_error(complaints)
        raise Unavailable(
            f"no free port for Postgres on 127.0.0.1 between {PORTS.start} and {PORTS.stop}",
            hint="close what listens there, or set NOETL_DB_URL to a database of yours",
        )

    def make_postgres_command(
        self,
        runtime: PostgresBinaries,
        account: Account | None,
        descriptor: int,
        port: int,
    ) -> list[str]:
        settings: dict[str, str] = {}
        if runtime.major >= 18:
            settings.update(SINCE_18)
        settings.update(self.settings)
        settings["port"] = str(port)
        directory = get_directory_name(self.cluster.data, descriptor, account)
        command = [runtime.get_program("postgres"), "-D", directory]
        for name, value in settings.items():
            command += ["-c", f"{name}={value}"]
        return command

    def wait_for_postgres(self, server: PostgresProcess) -> bool:
        """Wait until the server takes connections. False if it ends or takes too long."""
        end = time.monotonic() + POSTGRES_START_TIMEOUT_S
        while time.monotonic() < end:
            postmaster = read_postmaster(self.cluster.data)
            if postmaster is not None:
                if postmaster.pid == server.process.pid and postmaster.ready:
                    return True
            if server.ended.wait(0.005):
                return False
        server.stop()
        return False

    def read_complaints(self, begin: int) -> str:
        """The errors in the log since the position `begin`, or else its last lines."""
        with self.log.open("rb") as file:
            file.seek(begin)
            lines = file.read().decode(errors="replace").splitlines()
        signs = ("FATAL:", "PANIC:", "could not")
        errors = [line for line in lines if any(sign in line for sign in signs)]
        return "\n".join(errors or lines[-3:])

    def make_start_error(self, complaints: str) -> Unavailable:
        if os.strerror(errno.ENOSPC) in complaints:
            return homes.make_home_full(self.home, complaints)
        return Unavailable(
            f"Postgres did not start: {complaints or 'it ended without a word'}",
            hint=f"{self.log} has the details",
        )

    def make_dsns(self, port: int) -> Dsns:
        """The addresses of a server at this port.

        A server that an older NoETL has started has no role for servers until it is started again.
        """
        passwords = self.cluster.read_passwords()

        def make_dsn(role: str, database: str) -> str:
            return f"postgresql://{role}:{passwords[role]}@127.0.0.1:{port}/{database}"

        control = make_dsn(CONTROL_ROLE, CONTROL_ROLE)
        app = make_dsn(APP_ROLE, CONTROL_ROLE) if APP_ROLE in passwords else control
        return Dsns(control, make_dsn(DATA_ROLE, DATA_ROLE), app)


@contextmanager
def hold_start_lock(lock: Path) -> Iterator[None]:
    """Hold the lock for looking, creating and starting. A process that had to wait here usually
    finds the server running."""
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        end = time.monotonic() + POSTGRES_START_TIMEOUT_S
        while not try_lock(descriptor, lock):
            if time.monotonic() > end:
                home = lock.parent
                raise Unavailable(
                    f"another process has been starting the database of {home}"
                    f" for {POSTGRES_START_TIMEOUT_S:.0f} s",
                    hint=f"look at {home / 'postgres.log'}; end that process if it hangs",
                )
            time.sleep(0.01)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def claim_data_directory(data: Path) -> Iterator[int | Postmaster]:
    """Yield the locked data directory as an open file, which a new server inherits. If a server has
    it and answers, yield that server instead."""
    descriptor = os.open(data, os.O_RDONLY | os.O_DIRECTORY)
    try:
        end = time.monotonic() + ORPHANS_TIMEOUT_S
        while not try_lock(descriptor, data):
            postmaster = read_postmaster(data)
            if postmaster is not None and postmaster.ready:
                if is_server_of(postmaster.pid, data) and is_answering(postmaster.port):
                    yield postmaster
                    return
            # The server is stopping, its processes outlive it, or it runs in another container.
            if time.monotonic() > end:
                raise Unavailable(
                    f"{data} is in use by a Postgres that does not answer here",
                    hint="end what uses it (another container with this NOETL_HOME?),"
                    " or set another NOETL_HOME",
                )
            time.sleep(0.01)
        yield descriptor
    finally:
        os.close(descriptor)  # does not unlock: a server that inherited the file keeps the lock


def try_lock(descriptor: int, path: Path) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
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
        is_ready = len(lines) > 7 and lines[7].strip() == "ready"
        return Postmaster(int(lines[0]), int(lines[3]), is_ready)
    except (FileNotFoundError, ValueError, IndexError):  # no file, or it is being written
        return None


def forget_leftover(data: Path) -> None:
    """Delete a `postmaster.pid` with the pid of another program, which would keep Postgres from
    starting.

    The caller holds the lock, so no server that NoETL started is alive. If the pid is a Postgres, a
    person started it; the file stays, and Postgres reports the conflict.
    """
    file = data / "postmaster.pid"
    try:
        pid = int(file.read_text().split(maxsplit=1)[0])
    except FileNotFoundError:
        return
    except (ValueError, IndexError):
        pid = 0
    if pid == 0 or (is_process_alive(pid) and not is_server_of(pid, data)):
        file.unlink(missing_ok=True)


def find_free_ports(last_port: int | None) -> Iterator[int]:
    """Yield a few free ports, first the last one, so that addresses of clients stay valid."""
    choices = random.sample(PORTS, 64)
    if last_port:
        choices.insert(0, last_port)
    return islice((port for port in choices if is_free_port(port)), MAX_PORT_TRIES)


def is_answering(port: int) -> bool:
    """Whether the server takes connections. A server that is about to end can still look alive, and
    no process would start it again."""
    with socket.socket() as probe:
        probe.settimeout(PROBE_TIMEOUT_S)
        try:
            probe.connect(("127.0.0.1", port))
            probe.sendall(SSL_REQUEST)
            return probe.recv(1) in (b"S", b"N")
        except OSError:
            return False


def is_free_port(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as Postgres does
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def rotate_log(log: Path) -> None:
    if log.exists() and log.stat().st_size > MAX_LOG_BYTES:
        log.replace(log.with_suffix(".log.1"))


# Children belong to the whole process, so all callers in it share one object per home.
_HOMES: dict[Path, EmbeddedPostgres] = {}


def find_data_address(home: Path) -> str | None:
    """The address of the database for users' tables in this home, also while its server is down.
    None if there is none yet."""
    embedded = EmbeddedPostgres(home)
    port = embedded.cluster.read_last_port()
    if port is None:
        return None
    return embedded.make_dsns(port).data


async def ensure(home: Path | None = None) -> Dsns:
    """Addresses that work now: of the database at `NOETL_DB_URL`, or of the one in home, which is
    started if needed."""
    url = os.environ.get("NOETL_DB_URL")
    if url:
        app_role = await external.check_database(url)
        return Dsns(url, None, url, app_role)
    path = (home or homes.locate_home()).absolute()
    embedded = _HOMES.setdefault(path, EmbeddedPostgres(path))
    return await embedded.ensure()


async def stop() -> None:
    """End every server that this process started."""
    await asyncio.gather(*(embedded.stop() for embedded in _HOMES.values()))
