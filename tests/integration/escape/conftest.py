"""A server and one worker, each a process, against which steps of hostile playbooks run."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import StackClient, open_stack_client
from tests.integration.escape.ordinary_user import make_ordinary_folder
from tests.stack import NoetlCommand, run_stack, temporary_home
from tests.waiting import until


@pytest.fixture(scope="module")
def stack() -> Iterator[StackClient]:
    with temporary_home("escape") as home:
        command = NoetlCommand(home).with_env(
            NOETL_CREDENTIAL_CANARY='{"token": "canary-5d1f0a77"}'
        )
        with run_stack(command, workers=1) as stack, open_stack_client(stack) as client:
            until(lambda: len(client.get("/api/workers")) == 1)
            yield client


@pytest.fixture
def ordinary_folder() -> Iterator[Path]:
    with make_ordinary_folder() as folder:
        yield folder
