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

from noetl.cli.loop import in_loop
from noetl.cli.output import explain, log_to_stderr, say, warn_of_unknown_settings

if TYPE_CHECKING:
    import socket

    from noetl.server.app import Node

log = logging.getLogger(__name__)

LOOK_EVERY = 0.5  # seconds between two looks at a folder

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
        name="server", help="A server of its own.", no_args_is_help=True, rich_markup_mode=None
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
    in_loop(_start(host, port))


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
    in_loop(_dev(folder, host, port))


def openapi() -> None:
    """Print the OpenAPI document of the server.

    Example: noetl openapi > openapi.json
    """
    from noetl.server.app import openapi as document

    sys.stdout.write(json.dumps(document(), ensure_ascii=False, indent=2) + "\n")


# ---- running -----------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def _node(
    host: str | None, port: int | None
) -> AsyncIterator[tuple["Node", "socket.socket", asyncio.Event, str | None]]:
    """A server, its socket, the event that stops it, and the address of the users' database.

    The socket is opened first: a process that cannot have it must not start a database.
    """
    from noetl.cli.embedded import opened, opened_results, server_settings
    from noetl.cli.jobs import scheduled
    from noetl.cli.language import kinds
    from noetl.server.app import ServerPorts, address, assemble, listen, stop_on_signals
    from noetl.server.services.keys import KeyFile
    from noetl.settings import HomeSettings, Listen, read
    from noetl.turns import AT_A_STRETCH

    listen_settings = read(Listen, host=host, port=port)
    listening = listen(listen_settings.host, listen_settings.port)
    stop = stop_on_signals()
    try:
        async with opened(read(HomeSettings).where, AT_A_STRETCH) as home_ports:
            ports = ServerPorts(
                log=home_ports.log,
                leases=home_ports.leases,
                bus=home_ports.bus,
                catalog=home_ports.catalog,
                clock=home_ports.clock,
                vault=home_ports.vault,
                keys=KeyFile(home_ports.home),
                schedules=home_ports.schedules,
                hooks=home_ports.hooks,
            )
            node = assemble(
                ports,
                server_settings(home_ports.shards, address(listening), AT_A_STRETCH),
                kinds=kinds(),
                jobs=scheduled(),
                open_results=lambda server: opened_results(server, home_ports.home),
            )
            await _keys(node)
            yield node, listening, stop, home_ports.data
    finally:
        listening.close()


async def _keys(node: "Node") -> None:
    """Check the key file now, so that a bad one stops the start.

    A credential that was sealed with another key fails only the steps that use it, so it is logged.
    """
    from noetl.model.identity import LOCAL

    for name in await node.services.credentials.foreign(LOCAL):
        log.error("credential sealed with another key", extra={"credential": name})


async def _start(host: str | None, port: int | None) -> None:
    from noetl.server.app import address, serve

    async with _node(host, port) as (node, listening, stop, _):
        say(f"server at {address(listening)}   NOETL_SERVER_URL={address(listening)}")
        sys.stdout.flush()
        await serve(node, listening, several=True, stop=stop)


async def _dev(folder: Path, host: str | None, port: int | None) -> None:
    from noetl.cli.tools import tools, usual
    from noetl.server.app import address, serve
    from noetl.settings import HomeSettings, ShardSettings, Storage, WorkerProcessSettings, read
    from noetl.worker.app import options
    from noetl.worker.app import serve as work

    async with _node(host, port) as (node, listening, stop, data):
        say(f"server at {address(listening)}   NOETL_SERVER_URL={address(listening)}")
        sys.stdout.flush()
        worker = options(
            read(HomeSettings).where,
            read(WorkerProcessSettings),
            read(ShardSettings),
            read(Storage),
        )
        worker = replace(
            worker, pools=usual(worker.pools), find_data=lambda: data, tools=tools(worker.home)
        )
        worker_left = asyncio.Event()  # the server runs until the worker has sent its last reports
        serving = asyncio.ensure_future(serve(node, listening, several=True, stop=worker_left))
        working = asyncio.ensure_future(work(node.server, worker, stop))
        watching = asyncio.ensure_future(_watch(folder, node))
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


async def _watch(folder: Path, node: "Node") -> None:
    """Register new and changed files. Problems of a file are printed, and watching goes on."""
    states_before: dict[Path, tuple[int, int]] = {}
    while True:
        states = await asyncio.to_thread(_states, folder)
        for file, state in states.items():
            if states_before.get(file) != state:
                states_before[file] = state
                await _register(file, node)
        await asyncio.sleep(LOOK_EVERY)


def _states(folder: Path) -> dict[Path, tuple[int, int]]:
    """Time of the last change and size of each playbook."""
    from noetl.cli.catalog import playbooks_in

    states = {}
    for file in playbooks_in(folder):
        try:
            states[file] = (file.stat().st_mtime_ns, file.stat().st_size)
        except OSError:  # deleted since it was listed
            continue
    return states


async def _register(file: Path, node: "Node") -> None:
    from noetl.cli.language import load_or_raise
    from noetl.cli.run import read
    from noetl.model.errors import NoetlError
    from noetl.model.identity import LOCAL

    try:
        text = read(file)
        await asyncio.to_thread(load_or_raise, text, str(file))  # so that findings name the file
        registered = await node.services.catalog.register(LOCAL, text)
    except NoetlError as error:
        print(explain(error), file=sys.stderr)
        return
    if registered.created:
        say(f"{file}: {registered.entry.path} version {registered.entry.version}")
        sys.stdout.flush()
