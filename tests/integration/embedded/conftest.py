"""One home per module, made once; every test begins and ends with no server in it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from noetl.embedded.postgres import Embedded
from tests.integration.embedded.given import Process, gone
from tests.postgres import scratch


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """In place of pytest's, which would keep these large homes for three sessions."""
    with TemporaryDirectory(dir=scratch(), ignore_cleanup_errors=True) as directory:
        yield Path(directory)


@pytest.fixture(scope="module")
def made_home() -> Iterator[Path]:
    with TemporaryDirectory(dir=scratch(), ignore_cleanup_errors=True) as directory:
        home = Path(directory, "home")
        embedded = Embedded(home)
        embedded.serve()
        embedded.halt()
        yield home


@pytest.fixture
def home(made_home: Path) -> Iterator[Path]:
    yield made_home
    gone(made_home)


@pytest.fixture
def embedded(home: Path) -> Iterator[Embedded]:
    embedded = Embedded(home)
    yield embedded
    embedded.halt()


@pytest.fixture
def process() -> Iterator[Callable[[Path], Process]]:
    started: list[Process] = []

    def start(home: Path) -> Process:
        started.append(Process(home))
        return started[-1]

    yield start
    for each in started:
        each.kill()
    for each in started:
        gone(each.home)
