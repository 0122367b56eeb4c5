"""A server and workers over one home, as processes."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from noetl.client.http import HttpClient
from noetl.runtime.token_files import read_token_file
from tests.processes import free_port
from tests.stack.command import NoetlCommand
from tests.stack.processes import NoetlProcess
from tests.waiting import until

LOOPBACK = "127.0.0.0/8,::1"
open_stacks: list["Stack"] = []  # those that run now: a failing test shows their logs


@dataclass
class Stack:
    command: NoetlCommand  # of its home, with the settings of every process
    port: int
    slots: int | None = None  # of each worker; None: as many as it has by default
    has_crash_points: bool = False
    processes: dict[str, NoetlProcess] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def home(self) -> Path:
        return self.command.home

    @property
    def dsn(self) -> str | None:
        """The address of its database; None if it has the embedded one of its home."""
        return self.command.settings.get("NOETL_DB_URL")

    @property
    def client(self) -> NoetlCommand:
        """The command that asks this server."""
        return self.command.and_env(NOETL_SERVER_URL=self.url)

    @property
    def server(self) -> NoetlProcess:
        return self.processes["server"]

    @property
    def worker(self) -> NoetlProcess:
        return self.processes["worker"]

    @property
    def workers(self) -> list[NoetlProcess]:
        return [each for each in self.processes.values() if each.arguments[0] == "worker"]

    def start_server(self) -> NoetlProcess:
        return self._start("server", "server", "start", "--port", str(self.port))

    def start_worker(self, name: str | None = None, **settings: str) -> NoetlProcess:
        """One more, with these settings besides those of the stack.

        One with a home of its own gets a token, as on another machine.
        """
        if "NOETL_HOME" in settings:
            token = read_token_file(self.home, "worker")
            settings.setdefault("NOETL_TOKEN", str(token))
        name = name or self._name_worker()
        settings = {"NOETL_HTTP_ALLOW": LOOPBACK, **settings}  # servers of tests listen there
        slots = () if self.slots is None else ("--slots", str(self.slots))
        return self._start(name, "worker", "start", "--name", name, *slots, **settings)

    @contextmanager
    def run_worker(self, name: str | None = None, **settings: str) -> Iterator[NoetlProcess]:
        """One more, which is stopped in order afterwards."""
        worker = self.start_worker(name, **settings)
        yield worker
        worker.stop()
        del self.processes[worker.name]

    def wait_until_ready(self) -> None:
        def is_alive() -> None:
            assert self.server.is_alive, self.server.describe()

        wait_until_ready(self.url, is_alive)

    async def become_ready(self) -> None:
        """The same for a coroutine."""
        await asyncio.to_thread(self.wait_until_ready)

    def restart_dead(self) -> list[NoetlProcess]:
        """Start dead processes again, as a supervisor does. From now on no process is to die at a point."""
        for process in self.processes.values():
            process.forget_order()
        dead = [process for process in self.processes.values() if not process.is_alive]
        for process in dead:
            process.start()
        return dead

    @asynccontextmanager
    async def open_client(self) -> AsyncIterator[HttpClient]:
        async with HttpClient(self.url, self.home) as client:
            yield client

    def stop(self) -> None:
        """Stop workers, then the server, each in order."""
        for process in reversed(self.processes.values()):
            process.stop()

    def abandon(self) -> None:
        for process in reversed(self.processes.values()):
            process.abandon()

    def describe(self) -> str:
        """The end of each log."""
        return "\n".join(process.describe() for process in self.processes.values())

    def _start(self, name: str, *arguments: str, **settings: str) -> NoetlProcess:
        folder = self.home / "stack"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        env = self.client.and_env(**settings).environment
        process = NoetlProcess(name, folder, arguments, env, self.has_crash_points)
        self.processes[name] = process
        process.start()
        return process

    def _name_worker(self) -> str:
        number = len(self.workers) + 1
        return "worker" if number == 1 else f"worker{number}"


@contextmanager
def run_stack(
    command: NoetlCommand,
    *,
    workers: int = 0,
    port: int | None = None,
    slots: int | None = None,
    has_crash_points: bool = False,
    waits: bool = True,
) -> Iterator[Stack]:
    """Run a server and so many workers over the home of the command.

    It waits until the server is ready, unless the test wants to do that itself.
    """
    stack = Stack(command, port or free_port(), slots, has_crash_points)
    open_stacks.append(stack)
    try:
        stack.start_server()
        for _ in range(workers):
            stack.start_worker()
        if waits:
            stack.wait_until_ready()
        yield stack
        stack.stop()
    except BaseException as error:
        error.add_note(stack.describe())
        raise
    finally:
        open_stacks.remove(stack)
        stack.abandon()


def wait_until_ready(url: str, check: Callable[[], None] | None = None) -> None:
    """Return when the server there can work. `check` fails if it never will."""
    with httpx.Client(base_url=url, trust_env=False) as http:

        def is_ready() -> bool:
            if check is not None:
                check()
            try:
                return http.get("/ready").is_success
            except httpx.HTTPError:
                return False

        until(is_ready)
