"""Runs a server, or a server with a worker, in this process: what `noetl server` and `noetl dev` do.

Most of their modules are loaded while the database is prepared, so this one does not import them.
"""

import sys
from importlib import import_module
from pathlib import Path

from noetl.cli.output import say
from noetl.runtime.server import OpenServer, open_server


async def serve_api(host: str | None, port: int | None) -> None:
    async with open_server(host, port, "noetl.runtime.serving") as opened:
        serving = import_module("noetl.runtime.serving")
        _print_address(opened)
        await serving.serve(opened.node, opened.listener, several=True, stop=opened.stop)


async def serve_folder(folder: Path, host: str | None, port: int | None) -> None:
    """Run a server and a worker, and register the playbooks of a folder whenever they change."""
    modules = ("noetl.runtime.server_with_worker", "noetl.cli.folder")
    async with open_server(host, port, *modules) as opened:
        both, cli_folder = map(import_module, modules)
        _print_address(opened)
        await both.run_server_and_worker(opened, cli_folder.watch_folder(folder, opened.node))


def _print_address(opened: OpenServer) -> None:
    say(f"server at {opened.address}   NOETL_SERVER_URL={opened.address}")
    sys.stdout.flush()
