"""Runs a worker that calls servers over HTTP, in a process of its own."""

import asyncio
from functools import partial
from importlib import import_module
from pathlib import Path

from msgspec.structs import replace

from noetl.runtime.egress import make_pool_guard
from noetl.runtime.tls import make_client_context
from noetl.runtime.token_files import find_token
from noetl.runtime.tools import make_extra_tools
from noetl.runtime.worker import FindDatabase, find_no_database, make_options, serve_worker
from noetl.settings import (
    DatabaseSettings,
    HomeSettings,
    ShardSettings,
    StorageSettings,
    WorkerProcessSettings,
    read_settings,
)
from noetl.worker.http import HttpChannel


async def run_worker(
    servers: list[str], worker: WorkerProcessSettings, stop: asyncio.Event
) -> None:
    """Run a worker for these servers until `stop` is set and it has drained."""
    home = read_settings(HomeSettings).home_path
    find_data: FindDatabase = find_no_database
    if read_settings(DatabaseSettings).db_url is None:
        find_data = partial(_find_data_address, home)
    options = make_options(
        home, worker, read_settings(ShardSettings), read_settings(StorageSettings)
    )
    channel = HttpChannel(
        servers,
        lambda url: find_token(url, home, "worker"),
        lambda url: make_client_context(url, home),
    )
    try:
        guard = make_pool_guard(home, servers)
        options = replace(options, find_data=find_data, tools=make_extra_tools(home), guard=guard)
        await serve_worker(channel, options, stop)
    finally:
        await channel.close()


def _find_data_address(home: Path) -> str | None:
    """The address of the database for users' tables. Few workers are asked for it, so what knows the
    embedded Postgres is loaded then."""
    address: str | None = import_module("noetl.embedded.postgres").find_data_address(home)
    return address
