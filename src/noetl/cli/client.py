"""The client of the commands: a server over HTTP if one is given, else the home of this machine."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from noetl.client.opening import open_row_client
from noetl.client.rows import RowClient
from noetl.model.errors import InvalidInput, NotFound
from noetl.model.ids import ExecutionId
from noetl.runtime import LocalNeed
from noetl.settings import HomeSettings, read_settings

LATEST = "@latest"
MAX_EXECUTION_ID = (1 << 63) - 1
_EXECUTION_ID = re.compile("[1-9][0-9]{0,18}")


@asynccontextmanager
async def open_client(
    need: LocalNeed = "read", pools: tuple[str, ...] = ()
) -> AsyncIterator[RowClient]:
    """Connect as the settings say."""
    place = read_settings(HomeSettings)
    server_url = place.server_urls[0] if place.server_urls else None
    async with open_row_client(server_url, place.home_path, need, pools) as client:
        yield client


ClientWork = Callable[[RowClient], Awaitable[Any]]


def run_with_client(work: ClientWork, need: LocalNeed = "read") -> Any:
    """Connect a client, run `work` with it, and return its result."""

    async def run_work() -> Any:
        async with open_client(need) as client:
            return await work(client)

    return asyncio.run(run_work())


async def find_execution_id(client: RowClient, text: str) -> ExecutionId:
    """The id of the execution that the user names: a number, or `@latest`.

    `@latest` is the newest execution that is not a child.
    """
    check_execution_name(text)
    if text != LATEST:
        return ExecutionId(text)
    for row in await client.list_executions(roots=True, limit=1):
        return ExecutionId(row["execution_id"])
    raise NotFound("there is no execution yet", hint="noetl run FILE starts one")


def is_execution_id(text: str) -> bool:
    return _EXECUTION_ID.fullmatch(text) is not None and int(text) <= MAX_EXECUTION_ID


def check_page_start(before: str | None) -> None:
    """Raise if `--before` names no execution."""
    if before is None or is_execution_id(before):
        return
    raise InvalidInput(
        f"--before {before!r}: not an execution id",
        hint="the id of the last one on the page before",
    )


def check_execution_name(text: str) -> None:
    """Raise if this can be no execution, whichever there are."""
    if text == LATEST or is_execution_id(text):
        return
    raise NotFound(
        f"{text!r} is not an execution id", hint="a number, or @latest; noetl exec list shows them"
    )
