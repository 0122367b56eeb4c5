"""Runs a server, or a server with a worker, in this process: what `noetl server`, `dev` and `ui` do.

Most of their modules are loaded while the database is prepared, so this one does not import them.
"""

import sys
from collections.abc import Awaitable, Callable
from importlib import import_module
from pathlib import Path

from noetl.cli.output import say
from noetl.model.identity import LOCAL_IDENTITY
from noetl.runtime.page_build import build_page_meanwhile, find_build_script
from noetl.runtime.server import OpenServer, open_server
from noetl.settings import PageSettings, read_settings

NO_TLS_NOTICE = (
    "without TLS: others on the network can read passwords, tokens and data on the way. "
    "Set NOETL_TLS_CERT and NOETL_TLS_KEY, or listen on 127.0.0.1 behind a proxy with TLS"
)


async def serve_api(host: str | None, port: int | None) -> None:
    async with open_server(host, port, "noetl.runtime.serving") as opened:
        serving = import_module("noetl.runtime.serving")
        _print_address(opened)
        async with build_page_meanwhile(_choose_build_script()):
            await serving.serve(
                opened.node, opened.listener, several=True, stop=opened.stop, tls=opened.tls
            )


async def serve_folder(folder: Path, host: str | None, port: int | None) -> None:
    """Run a server and a worker, and register the playbooks of a folder whenever they change."""
    modules = ("noetl.runtime.server_with_worker", "noetl.cli.folder")
    async with open_server(host, port, *modules) as opened:
        both, cli_folder = map(import_module, modules)
        _print_address(opened)
        await _print_link(opened)
        async with build_page_meanwhile(_choose_build_script()):
            await both.run_server_and_worker(opened, cli_folder.watch_folder(folder, opened.node))


async def serve_page(
    show: Callable[[str], Awaitable[None]], host: str | None, port: int | None
) -> None:
    """Run a server and a worker, and show the page at their address. `show` does not return."""
    async with open_server(host, port, "noetl.runtime.server_with_worker") as opened:
        both = import_module("noetl.runtime.server_with_worker")
        _print_address(opened)
        async with build_page_meanwhile(_choose_build_script(), delay_s=0.0):
            await both.run_server_and_worker(opened, show(opened.address))


def _choose_build_script() -> Path | None:
    """The script that builds the page, unless the settings say otherwise."""
    if read_settings(PageSettings).ui == "skip":
        return None
    return find_build_script()


async def _print_link(opened: OpenServer) -> None:
    """Print a link that signs a browser in: to a terminal only, because logs are read by others."""
    if not sys.stdout.isatty():
        return
    code = await opened.node.services.accounts.make_link(LOCAL_IDENTITY)
    say(f"page: {opened.address}/login?code={code}")
    say("      this link signs a browser in, once, within two minutes; noetl ui makes another")
    sys.stdout.flush()


def _print_address(opened: OpenServer) -> None:
    say(f"server at {opened.address}   NOETL_SERVER_URL={opened.address}")
    if opened.is_exposed:
        say(NO_TLS_NOTICE)
    sys.stdout.flush()
