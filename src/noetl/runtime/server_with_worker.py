"""Runs a server and a worker in one process."""

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

from noetl.runtime.server import OpenServer
from noetl.runtime.serving import serve
from noetl.runtime.tools import add_usual_pools, make_extra_tools
from noetl.runtime.worker import WorkerOptions, make_options, serve_worker
from noetl.settings import (
    HomeSettings,
    ShardSettings,
    StorageSettings,
    WorkerProcessSettings,
    read_settings,
)


async def run_server_and_worker(opened: OpenServer, background: Coroutine[Any, Any, None]) -> None:
    """Run a server, a worker that calls it in this process, and `background`, until one of them ends."""
    stop = opened.stop
    worker_left = asyncio.Event()  # the server runs until the worker has sent its last reports
    serving = asyncio.ensure_future(
        serve(opened.node, opened.listener, several=True, stop=worker_left)
    )
    options = _make_worker_options(opened)
    working = asyncio.ensure_future(serve_worker(opened.node.server, options, stop))
    watching = asyncio.ensure_future(background)
    try:
        await asyncio.wait((serving, working, watching), return_when=asyncio.FIRST_COMPLETED)
    finally:
        stop.set()
        watching.cancel()
        await asyncio.wait((working, watching))
        worker_left.set()
        await asyncio.wait((serving,))
    for task in (serving, working):
        task.result()


def _make_worker_options(opened: OpenServer) -> WorkerOptions:
    options = make_options(
        read_settings(HomeSettings).home_path,
        read_settings(WorkerProcessSettings),
        read_settings(ShardSettings),
        read_settings(StorageSettings),
    )
    return replace(
        options,
        pools=add_usual_pools(options.pools),
        find_data=lambda: opened.data,
        tools=make_extra_tools(options.home),
    )
