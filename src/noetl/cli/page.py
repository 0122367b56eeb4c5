"""`noetl ui`: opens the page of this machine's server in a browser."""

import asyncio
import os
import sys
import webbrowser
from typing import Annotated
from urllib.parse import quote

import typer

from noetl.cli.client import check_execution_name, find_execution_id
from noetl.cli.options import AsJson, Host, Port
from noetl.cli.output import log_to_stderr, say_row, warn_of_unknown_settings
from noetl.cli.serving import serve_page
from noetl.client.http import HttpClient
from noetl.runtime.event_loop import run_in_loop
from noetl.runtime.running_servers import find_server_address
from noetl.runtime.token_files import read_token_file
from noetl.settings import HomeSettings, read_settings

DISPLAY_VARIABLES = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")

OptionalId = Annotated[
    str | None, typer.Argument(metavar="[ID]", help="an execution's id, or @latest")
]
NoOpen = Annotated[bool, typer.Option("--no-open", help="print the address only")]


def register(app: typer.Typer) -> None:
    app.command()(ui)


def ui(
    execution_id: OptionalId = None,
    no_open: NoOpen = False,
    host: Host = None,
    port: Port = None,
    as_json: AsJson = False,
) -> None:
    """Open the page in a browser: the list of executions, or one of them.

    It is the page of the server of NOETL_SERVER_URL, else of a server that runs on this home (`noetl dev`, `noetl server start`).
    If none runs, this command starts a server and a worker, and runs until Ctrl-C.

    \b
    Examples:
      noetl ui
      noetl ui @latest
      noetl ui 724551830122291200 --no-open
    """
    if execution_id is not None:
        check_execution_name(execution_id)
    address = find_server_address()
    if address is not None:
        run_in_loop(_show_page(address, execution_id, no_open, as_json))
        return

    async def show_own_page(own_address: str) -> None:
        token = read_token_file(read_settings(HomeSettings).home_path, "admin")
        await _show_page(own_address, execution_id, no_open, as_json, token)
        await asyncio.Event().wait()  # the server runs until it is stopped

    log_to_stderr("INFO")
    warn_of_unknown_settings()
    run_in_loop(serve_page(show_own_page, host, port))


async def _show_page(
    address: str, named: str | None, no_open: bool, as_json: bool, token: str | None = None
) -> None:
    """Print the address of the page, and open it in a browser if there is one.

    The browser gets a link that signs it in, once. It is printed if no browser opens it, for
    the user of this terminal. `token` is for a server that has just begun.
    """
    async with HttpClient(address, read_settings(HomeSettings).home_path, token) as client:
        path = await _find_path(client, named)
        login_path = await client.make_login_path()
        url = f"{client.url}{path}"
        link = f"{client.url}{login_path}&next={quote(path, safe='')}"
    is_opened = False
    if not no_open and _has_display():
        is_opened = await asyncio.to_thread(webbrowser.open, link)
    sentence = f"page at {url}"
    if not is_opened:
        sentence += f"\nthis link signs a browser in, once, within two minutes: {link}"
    say_row({"url": url, "opened": is_opened, "link": link}, sentence, as_json=as_json)
    sys.stdout.flush()


async def _find_path(client: HttpClient, named: str | None) -> str:
    """The place of the page. Raises if the server does not answer, or has no such execution."""
    if named is None:
        return "/executions"
    execution_id = await find_execution_id(client, named)
    await client.get_status(execution_id)
    return f"/executions/{execution_id}"


def _has_display() -> bool:
    """Whether a window can be opened. Without this check, a browser for terminals would take this one."""
    if sys.platform != "linux":
        return True
    return any(os.environ.get(name) for name in DISPLAY_VARIABLES)
