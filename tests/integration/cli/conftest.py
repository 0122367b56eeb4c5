"""The `noetl` command as its users have it: processes, a home of their own, a real database in it."""

from collections.abc import Iterator

import pytest

from tests import processes
from tests.stack import NoetlCommand, temporary_home


@pytest.fixture(scope="module")
def noetl() -> Iterator[NoetlCommand]:
    """One home for the tests of a file: making a database takes longer than they do."""
    with temporary_home("cli") as home:
        yield NoetlCommand(home)


@pytest.fixture
def free_port() -> int:
    return processes.free_port()
