"""`noetl server` starts a server. `noetl dev` starts a server and a worker for authors of playbooks."""

import asyncio
import json
import logging
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from noetl.cli.event_loop import run_in_loop
from noetl.cli.output import format_error, log_to_stderr, say, warn_of_unknown_settings

if TYPE_CHECKING:
    import socket

    from noetl.server.app import Node

log = logging.getLogger(__name__)

FOLDER_POLL_S = 0.5  # seconds between two looks at a folder

Host = Annotated[
    str | None, typer.Option("--host", help="loopback only: there is no login yet (NOETL_HOST)")
]
Port = Annotated[
    int | None,
    typer.Option(
        "--port",
        "-p",
        min=0,
        max=65535,
        help="8082 (NOETL_PORT); 0: a free one",
    ),
]


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        name="server",
        help="A server as a process of its own.",
        no_args_is_help=True,
        rich_markup_mode=None,
    )
    group.callback()(lambda: None)  # a group, though it has one command
    group.command()(start)
    app.add_typer(group)
    app.command()(dev)
    app.command()(openapi)


def start(host: Host = None, port: Port = None) -> None:
    """Start a server: the API, dispatch and the duties. Ctrl-C or SIGTERM stops it in order.

    It uses the database of NOETL_DB_URL, else the embedded one below NOETL_HOME. Any number of servers may share a database.
    Workers and commands find it by NOETL_SERVER_URL.

    \b
    Example:
      noetl server start --port 8082
      NOETL_SERVER_URL=http://127.0.0.1:8082 noetl worker start
      NOETL_SERVER_URL=http://127.0.0.1:8082 noetl run examples/hello.yaml
    """
    log_to_stderr("INFO")
    warn_of_unknown_settings()
    run_in_loop(_run_server(host, port))


def dev(
    folder: Annotated[
        Path,
        typer.Argument(metavar="[DIR]", help="playbooks that are registered whenever they change"),
    ] = Path(),
    host: Host = None,
    port: Port = None,
) -> None:
    """Start a server and a worker in one process, and register the playbooks of a folder whenever they are saved.

    \b
    Example:
      noetl dev playbooks/
      NOETL_SERVER_URL=http://127.0.0.1:8082 noetl run examples/hello
    """
    from noetl.model.errors import InvalidInput

    if not folder.is_dir():
        raise InvalidInput(
            f"{folder} is not a folder", hint="noetl dev DIR; without DIR, where you are"
        )
    log_to_stderr("INFO")
    warn_of_unknown_settings()
    run_in_loop(_run_dev_server(folder, host, port))


def openapi() -> None:
    """Print the OpenAPI document of the server.

    Example: noetl openapi > openapi.json
    """
    from noetl.server.app import make_openapi as document

    sys.stdout.write(json.dumps(document(), ensure_ascii=False, indent=2) + "\n")


# ---- running -----------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def _open_node(
    host: str | None, port: int | None
) -> AsyncIterator[tuple["Node", "socket.socket", asyncio.Event, str | None]]:
    """A server, its socket, the event that stops it, and the address of the users' database.

    The socket is opened first: a process that cannot have it must not start a database.
    """
    from noetl.cli.embedded import make_server_settings, open_home, open_result_reading
    from noetl.cli.jobs import make_scheduled_jobs
    from noetl.cli.language import find_known_kinds
    from noetl.server.app import (
        ServerPorts,
        assemble_node,
        format_address,
        open_listener,
        stop_on_signals,
    )
    from noetl.server.credentials.keys import KeyFile
    from noetl.settings import HomeSettings, ListenSettings, read_settings
    from noetl.time_slice import SERVER_TIME_SLICE_S

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


async def _check_credential_keys(node: "Node") -> None:
    """Check the key file now, so that a bad one stops the start.

    A credential that was sealed with another key fails only the steps that use it, so it is logged.
    """
    from noetl.model.identity import LOCAL_IDENTITY

    for name in await node.services.credentials.list_unreadable(LOCAL_IDENTITY):
        log.error("credential sealed with another key", extra={"credential": name})


async def _run_server(host: str | None, port: int | None) -> None:
    from noetl.server.app import format_address, serve

    async with _open_node(host, port) as (node, listening, stop, _):
        say(f"server at {format_address(listening)}   NOETL_SERVER_URL={format_address(listening)}")
        sys.stdout.flush()
        await serve(node, listening, several=True, stop=stop)


async def _run_dev_server(folder: Path, host: str | None, port: int | None) -> None:
    from noetl.cli.tools import add_usual_pools, make_extra_tools
    from noetl.server.app import format_address, serve
    from noetl.settings import (
        HomeSettings,
        ShardSettings,
        StorageSettings,
        WorkerProcessSettings,
        read_settings,
    )
    from noetl.worker.app import make_options
    from noetl.worker.app import serve_worker as work

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
        working = asyncio.ensure_future(work(node.server, worker, stop))
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


async def _watch_folder(folder: Path, node: "Node") -> None:
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
    from noetl.cli.catalog import find_playbook_files

    states = {}
    for file in find_playbook_files(folder):
        try:
            states[file] = (file.stat().st_mtime_ns, file.stat().st_size)
        except OSError:  # deleted since it was listed
            continue
    return states


async def _register_changed_file(file: Path, node: "Node") -> None:
    from noetl.cli.language import check_playbook_or_raise
    from noetl.cli.run import read_text_file
    from noetl.model.errors import NoetlError
    from noetl.model.identity import LOCAL_IDENTITY

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
