"""Opens a client over HTTP or in this process. Loads only what the chosen one needs."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from noetl.client.rows import RowClient
from noetl.runtime import LocalNeed


@asynccontextmanager
async def open_row_client(
    server_url: str | None,
    home: Path,
    need: LocalNeed = "read",
    pools: tuple[str, ...] = (),
    token: str | None = None,
) -> AsyncIterator[RowClient]:
    """Connect to the server with this token, or without one open the home of this machine.

    A worker that runs in this process also serves `pools`.
    """
    if server_url is not None:
        from noetl.client.http import HttpClient  # needs the HTTP library

        async with HttpClient(server_url, home, token) as remote:
            yield remote
        return
    from noetl.client.local import open_local_client  # needs the server, the worker and Postgres

    async with open_local_client(home, need, pools) as local:
        yield local
