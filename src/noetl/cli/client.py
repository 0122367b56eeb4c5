"""The client of the commands: a server over HTTP if one is given, else the home of this machine."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from noetl.client.opening import open_row_client
from noetl.client.rows import RowClient
from noetl.model.errors import NotFound
from noetl.model.ids import ExecutionId
from noetl.runtime import LocalNeed
from noetl.settings import HomeSettings, read_settings

LATEST = "@latest"


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
    if text == LATEST:
        for row in await client.list_executions(roots=True, limit=1):
            return ExecutionId(row["execution_id"])
        raise NotFound("there is no execution yet", hint="noetl run FILE starts one")
    if not (text.isascii() and text.isdigit()):
        raise NotFound(
            f"{text!r} is not an execution id",
            hint="a number, or @latest; noetl exec list shows them",
        )
    return ExecutionId(text)
