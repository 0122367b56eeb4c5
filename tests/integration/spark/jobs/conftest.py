"""What the tests of jobs share: a log, and a lake of each kind."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from noetl.spark.jobs.lake import LakeStore
from tests.integration.spark.jobs.old_log import LAKES, fill, new_lake
from tests.postgres import server


@pytest.fixture
def log() -> Iterator[str]:
    with server().database(template=server().template("jobs", fill)) as dsn:
        yield dsn


@pytest.fixture(params=LAKES)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> LakeStore:
    return new_lake(request.param, tmp_path / "lake")
