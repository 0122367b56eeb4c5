"""A Postgres for tests: one server per test process, started at first use, and a new database for each test.

    with server().database() as dsn: ...                              # empty
    with server().database(template=server().template("noetl", migrate)) as dsn: ...   # a copy of what `migrate(dsn)` made

Nothing reaches the disk for good (`fsync=off`): killing the server loses nothing, a power cut would.
"""

import asyncio
import atexit
import fcntl
import os
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from pathlib import Path
from urllib.parse import urlsplit

import psycopg

from noetl.embedded.postgres import Dsns, EmbeddedPostgres
from tests.inspection import inspect

HURRIED = {
    "fsync": "off",
    "full_page_writes": "off",
    "shared_buffers": "64MB",
    "autovacuum_naptime": "1h",
}
PREFIX = "noetl-test-postgres-"
_numbers = count(1)


@dataclass
class Postgres:
    embedded: EmbeddedPostgres
    templates: set[str] = field(default_factory=set)

    @property
    def dsns(self) -> Dsns:
        """Started again when a test has killed it."""
        return self.embedded.ensure_postgres()

    @contextmanager
    def database(self, template: str = "template1") -> Iterator[str]:
        """The address of a new database; inspected and dropped afterwards, even if clients are connected."""
        name = f"test_{next(_numbers)}"
        self.create(name, template)
        try:
            yield self.address(name)
            inspect(self.address(name))
        finally:
            self.do(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    def template(self, name: str, fill: Callable[[str], Awaitable[None]]) -> str:
        """A database that `fill(dsn)` fills once per server, to copy others from. `fill` closes its connections."""
        if name not in self.templates:
            self.create(f"template_{name}", "template1")

            async def run() -> None:
                await fill(self.address(f"template_{name}"))

            with ThreadPoolExecutor(1) as apart:  # the caller may have a loop running
                apart.submit(asyncio.run, run()).result()
            self.templates.add(name)
        return f"template_{name}"

    def address(self, database: str) -> str:
        return urlsplit(self.dsns.control)._replace(path=f"/{database}").geturl()

    def create(self, name: str, template: str) -> None:
        self.do(f"CREATE DATABASE {name} TEMPLATE {template}")

    def do(self, statement: str) -> None:
        with psycopg.connect(self.dsns.control, autocommit=True) as connection:
            connection.execute(statement)


@cache
def server() -> Postgres:
    sweep()
    home = Path(tempfile.mkdtemp(dir=scratch(), prefix=PREFIX))
    lock(home)  # until this process ends
    embedded = EmbeddedPostgres(home, HURRIED)
    embedded.ensure_postgres()

    def end() -> None:
        embedded.stop_postgres()
        shutil.rmtree(home, ignore_errors=True)

    atexit.register(end)
    return Postgres(embedded)


def scratch() -> Path:
    """Where files are made and removed fastest."""
    memory = Path("/dev/shm")
    if os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > 2 << 30:
        return memory
    return Path(tempfile.gettempdir())


def sweep() -> None:
    """What test processes left that were killed."""
    for home in scratch().glob(f"{PREFIX}*"):
        try:
            opened = lock(home)
        except OSError:
            continue
        shutil.rmtree(home, ignore_errors=True)
        os.close(opened)


def lock(home: Path) -> int:
    opened = os.open(home, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(opened)
        raise
    return opened
