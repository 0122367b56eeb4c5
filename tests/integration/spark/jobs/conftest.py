"""What the tests of jobs share: a log and a lake."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.spark.jobs.given import fill
from tests.postgres import server


@pytest.fixture
def log() -> Iterator[str]:
    with server().database(template=server().template("jobs", fill)) as dsn:
        yield dsn


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"
