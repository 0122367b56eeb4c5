"""One home per module, made once; every test begins and ends with no server in it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from noetl.embedded.postgres import EmbeddedPostgres
from tests.integration.embedded.home_users import HomeUser, wait_until_closed
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
        embedded = EmbeddedPostgres(home)
        embedded.ensure_postgres()
        embedded.stop_postgres()
        yield home


@pytest.fixture
def home(made_home: Path) -> Iterator[Path]:
    yield made_home
    wait_until_closed(made_home)


@pytest.fixture
def embedded(home: Path) -> Iterator[EmbeddedPostgres]:
    embedded = EmbeddedPostgres(home)
    yield embedded
    embedded.stop_postgres()


@pytest.fixture
def process() -> Iterator[Callable[[Path], HomeUser]]:
    started: list[HomeUser] = []

    def start(home: Path) -> HomeUser:
        started.append(HomeUser(home))
        return started[-1]

    yield start
    for each in started:
        each.kill()
    for each in started:
        wait_until_closed(each.home)
