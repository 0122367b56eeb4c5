"""A real Postgres: one server per test process, a new database per test."""

from collections.abc import Iterator

import pytest

from tests.postgres import Postgres, server


@pytest.fixture(scope="session")
def postgres() -> Postgres:
    return server()


@pytest.fixture
def database(postgres: Postgres) -> Iterator[str]:
    """The address of an empty database of one's own."""
    with postgres.database() as dsn:
        yield dsn
