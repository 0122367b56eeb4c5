"""`noetl server` starts a server. `noetl dev` starts a server and a worker for authors of playbooks."""

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from noetl.cli.options import Host, Port
from noetl.cli.output import log_to_stderr, warn_of_unknown_settings
from noetl.cli.serving import serve_api, serve_folder
from noetl.model.errors import InvalidInput
from noetl.runtime.event_loop import run_in_loop


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
    run_in_loop(serve_api(host, port))


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
    if not folder.is_dir():
        raise InvalidInput(
            f"{folder} is not a folder", hint="noetl dev DIR; without DIR, where you are"
        )

    log_to_stderr("INFO")
    warn_of_unknown_settings()
    run_in_loop(serve_folder(folder, host, port))


def openapi() -> None:
    """Print the OpenAPI document of the server.

    Example: noetl openapi > openapi.json
    """
    application = import_module("noetl.server.http.application")  # a server loads it later
    sys.stdout.write(json.dumps(application.make_openapi(), ensure_ascii=False, indent=2) + "\n")
