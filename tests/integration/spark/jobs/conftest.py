"""What the tests of jobs share: a log, a lake, and points to die at."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from noetl import faults
from tests.integration.spark.jobs.given import Died, fill
from tests.postgres import server


@pytest.fixture
def log() -> Iterator[str]:
    with server().database(template=server().template("jobs", fill)) as dsn:
        yield dsn


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


@pytest.fixture
def dying() -> Iterator[list[str]]:
    """Names of points where the process dies, each once."""
    names: list[str] = []

    def hook(point: str) -> None:
        if point in names:
            names.remove(point)
            raise Died(point)

    faults.install(hook)
    yield names
    faults.install(None)
