"""Runs a server, or a server with a worker, in this process: what `noetl server` and `noetl dev` do."""

import asyncio
import logging
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from noetl.cli.arguments import find_playbook_files, read_text_file
from noetl.cli.embedded import make_server_settings, open_home, open_result_reading
from noetl.cli.language import check_playbook_or_raise, find_known_kinds
from noetl.cli.output import format_error, say
from noetl.cli.scheduled_jobs import make_scheduled_jobs
from noetl.cli.tools import add_usual_pools, make_extra_tools
from noetl.model.errors import NoetlError
from noetl.model.identity import LOCAL_IDENTITY
from noetl.server.app import (
    Node,
    ServerPorts,
    assemble_node,
    format_address,
    open_listener,
    serve,
    stop_on_signals,
)
from noetl.server.credentials.keys import KeyFile
from noetl.settings import (
    HomeSettings,
    ListenSettings,
    ShardSettings,
    StorageSettings,
    WorkerProcessSettings,
    read_settings,
)
from noetl.time_slice import SERVER_TIME_SLICE_S
from noetl.worker.app import make_options, serve_worker

log = logging.getLogger(__name__)

FOLDER_POLL_S = 0.5  # seconds between two looks at a folder


@asynccontextmanager
async def _open_node(
    host: str | None, port: int | None
) -> AsyncIterator[tuple[Node, socket.socket, asyncio.Event, str | None]]:
    """A server, its socket, the event that stops it, and the address of the users' database.

    The socket is opened first: a process that cannot have it must not start a database.
    """
    listen_settings = read_settings(ListenSettings, host=host, port=port)
    listening = open_listener(listen_settings.host, listen_settings.port)
    stop = stop_on_signals()
    try:
        async with open_home(
            read_settings(HomeSettings).home_path, SERVER_TIME_SLICE_S
        ) as home_ports:
            ports = ServerPorts(
                stores=home_ports.stores,
                leases=home_ports.leases,
                bus=home_ports.bus,
                catalog=home_ports.catalog,
                clock=home_ports.clock,
                vault=home_ports.vault,
                keys=KeyFile(home_ports.home),
                schedules=home_ports.schedules,
                hooks=home_ports.hooks,
            )
            node = assemble_node(
                ports,
                make_server_settings(
                    home_ports.shards, format_address(listening), SERVER_TIME_SLICE_S
                ),
                kinds=find_known_kinds(),
                jobs=make_scheduled_jobs(),
                open_results=lambda server: open_result_reading(server, home_ports.home),
            )
            await _check_credential_keys(node)
            yield node, listening, stop, home_ports.data
    finally:
        listening.close()


async def _check_credential_keys(node: Node) -> None:
    """Check the key file now, so that a bad one stops the start.

    A credential that was sealed with another key fails only the steps that use it, so it is logged.
    """
    for name in await node.services.credentials.list_unreadable(LOCAL_IDENTITY):
        log.error("credential sealed with another key", extra={"credential": name})


async def run_server(host: str | None, port: int | None) -> None:
    async with _open_node(host, port) as (node, listening, stop, _):
        say(f"server at {format_address(listening)}   NOETL_SERVER_URL={format_address(listening)}")
        sys.stdout.flush()
        await serve(node, listening, several=True, stop=stop)


async def run_dev_server(folder: Path, host: str | None, port: int | None) -> None:
    async with _open_node(host, port) as (node, listening, stop, data):
        say(f"server at {format_address(listening)}   NOETL_SERVER_URL={format_address(listening)}")
        sys.stdout.flush()
        worker = make_options(
            read_settings(HomeSettings).home_path,
            read_settings(WorkerProcessSettings),
            read_settings(ShardSettings),
            read_settings(StorageSettings),
        )
        worker = replace(
            worker,
            pools=add_usual_pools(worker.pools),
            find_data=lambda: data,
            tools=make_extra_tools(worker.home),
        )
        worker_left = asyncio.Event()  # the server runs until the worker has sent its last reports
        serving = asyncio.ensure_future(serve(node, listening, several=True, stop=worker_left))
        working = asyncio.ensure_future(serve_worker(node.server, worker, stop))
        watching = asyncio.ensure_future(_watch_folder(folder, node))
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


async def _watch_folder(folder: Path, node: Node) -> None:
    """Register new and changed files. Problems of a file are printed, and watching goes on."""
    states_before: dict[Path, tuple[int, int]] = {}
    while True:
        states = await asyncio.to_thread(_read_file_states, folder)
        for file, state in states.items():
            if states_before.get(file) != state:
                states_before[file] = state
                await _register_changed_file(file, node)
        await asyncio.sleep(FOLDER_POLL_S)


def _read_file_states(folder: Path) -> dict[Path, tuple[int, int]]:
    """Time of the last change and size of each playbook."""
    states = {}
    for file in find_playbook_files(folder):
        try:
            states[file] = (file.stat().st_mtime_ns, file.stat().st_size)
        except OSError:  # deleted since it was listed
            continue
    return states


async def _register_changed_file(file: Path, node: Node) -> None:
    try:
        text = read_text_file(file)
        await asyncio.to_thread(
            check_playbook_or_raise, text, str(file)
        )  # so that findings name the file
        registered = await node.services.catalog.register(LOCAL_IDENTITY, text)
    except NoetlError as error:
        print(format_error(error), file=sys.stderr)
        return
    if registered.created:
        say(f"{file}: {registered.path} version {registered.version}")
        sys.stdout.flush()
