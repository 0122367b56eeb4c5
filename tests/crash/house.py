"""A server and workers as processes over one database, and whoever looks after them: what died is started again."""

import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from noetl.client.http import HttpClient
from tests.postgres import scratch
from tests.processes import environment, free_port
from tests.waiting import look_again

ROOT = Path(__file__).parents[2]
PATIENCE = 240.0  # seconds until something hangs, however busy the machine is
LEASE = {"NOETL_SHARD_LEASE_SEC": "2", "NOETL_SHARD_HEARTBEAT_SEC": "0.5"}


@dataclass
class Machine:
    """One process of ours, by whatever number it has now."""

    name: str
    order: Path
    arguments: tuple[str, ...]
    env: dict[str, str] = field(repr=False)
    process: "subprocess.Popen[bytes] | None" = None

    def start(self) -> None:
        self.order.with_suffix(".began").unlink(missing_ok=True)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.crash.process", str(self.order), *self.arguments],
                env=self.env, cwd=ROOT, stdout=log, stderr=log,
            )  # fmt: skip

    @property
    def log(self) -> Path:
        return self.order.with_suffix(".log")

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def began(self) -> float:
        """When the process of now began to work; endless while it has not."""
        try:
            return float(self.order.with_suffix(".began").read_text() or "inf")
        except FileNotFoundError:
            return float("inf")

    def told(self, point: str, nth: int) -> None:
        """It dies at the nth passing of that point."""
        draft = self.order.with_suffix(".draft")
        draft.write_text(f"{point} {nth}")
        draft.rename(self.order)

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    async def death(self) -> None:
        """By kill -9, and by nothing else."""
        end = time.monotonic() + PATIENCE
        while self.alive:
            assert time.monotonic() < end, (
                f"{self.name} lives on: {self.order.read_text()} was not passed"
            )
            await look_again()
        assert self.process is not None
        assert self.process.returncode == -signal.SIGKILL, f"{self.name}: {self.said()}"

    def end(self) -> None:
        """In order."""
        self.order.unlink(missing_ok=True)
        if self.alive:
            assert self.process is not None
            self.process.terminate()
            assert self.process.wait(PATIENCE) == 0, f"{self.name}: {self.said()}"

    def said(self) -> str:
        return self.log.read_text(errors="replace")[-4_000:]


@dataclass
class House:
    home: Path
    dsn: str | None  # None: the embedded database of this home
    url: str
    env: dict[str, str] = field(repr=False)
    machines: dict[str, Machine] = field(default_factory=dict)

    @property
    def server(self) -> Machine:
        return self.machines["server"]

    @property
    def worker(self) -> Machine:
        return self.machines["worker"]

    def add(self, name: str, *arguments: str, **more: str) -> Machine:
        machine = self.machines[name] = Machine(
            name, self.home / name, arguments, {**self.env, **more}
        )
        machine.start()
        return machine

    def add_worker(self, **more: str) -> Machine:
        known = sum(name.startswith("worker") for name in self.machines)
        name = f"worker{known + 1}" if known else "worker"
        return self.add(name, "worker", "start", "--name", name, "--slots", "8", **more)

    async def ready(self) -> None:
        """The server can work."""
        end = time.monotonic() + PATIENCE
        async with httpx.AsyncClient(base_url=self.url, trust_env=False) as http:
            while time.monotonic() < end:
                try:
                    if (await http.get("/ready")).is_success:
                        return
                except httpx.HTTPError:
                    pass
                assert self.server.alive, self.server.said()
                await look_again()
        raise AssertionError(f"the server is not ready: {self.server.said()}")

    def restart(self) -> list[Machine]:
        """Whoever is dead, as a supervisor does; and from now on nobody is to die."""
        for machine in self.machines.values():
            machine.order.unlink(missing_ok=True)
        dead = [machine for machine in self.machines.values() if not machine.alive]
        for machine in dead:
            machine.start()
        return dead

    @asynccontextmanager
    async def client(self) -> AsyncIterator[HttpClient]:
        async with HttpClient(self.url, self.home) as remote:
            yield remote

    def end(self) -> None:
        for machine in reversed(self.machines.values()):
            machine.end()


@contextmanager
def house(dsn: str | None, *, workers: int = 1, **more: str) -> Iterator[House]:
    home = Path(tempfile.mkdtemp(dir=scratch(), prefix="noetl-test-crash-"))
    url = f"http://127.0.0.1:{free_port()}"
    env = environment(**LEASE, NOETL_HOME=str(home), NOETL_SERVER_URL=url, **more)
    here = House(home, dsn, url, env | ({"NOETL_DB_URL": dsn} if dsn else {}))
    try:
        here.add("server", "server", "start", "--port", url.rpartition(":")[2])
        for _ in range(workers):
            here.add_worker()
        yield here
        here.end()
    finally:
        for machine in here.machines.values():
            if machine.alive:
                machine.kill()
        shutil.rmtree(home, ignore_errors=True)
