"""`noetl worker`: starts a worker."""

import asyncio
import signal
import sys
from typing import Annotated

import typer

from noetl.cli.output import log_to_stderr, say, warn_of_unknown_settings
from noetl.runtime.event_loop import run_in_loop
from noetl.runtime.worker_process import run_worker
from noetl.settings import HomeSettings, WorkerProcessSettings, read_settings

DEFAULT_SERVER = "http://127.0.0.1:8082"


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        name="worker",
        help="A worker as a process of its own.",
        no_args_is_help=True,
        rich_markup_mode=None,
    )
    group.callback()(lambda: None)  # a group, though it has one command
    group.command()(start)
    app.add_typer(group)


def start(
    pools: Annotated[
        list[str] | None,
        typer.Option(
            "--pool",
            metavar="NAME",
            help="take commands of this pool; may be repeated (cpu and spark)",
        ),
    ] = None,
    slots: Annotated[
        int | None, typer.Option("--slots", min=1, max=1024, help="commands at once (16)")
    ] = None,
    name: Annotated[
        str | None,
        typer.Option("--name", help="its name, the same over restarts (NOETL_WORKER_ID)"),
    ] = None,
) -> None:
    """Start a worker for the server of NOETL_SERVER_URL (http://127.0.0.1:8082).

    On Ctrl-C or SIGTERM it claims nothing more, finishes what it runs (for at most NOETL_WORKER_DRAIN_SEC) and ends. If no server
    answers, it waits; if it is told to stop meanwhile, it keeps its reports for the next worker of its name and ends.

    Example: NOETL_SERVER_URL=http://127.0.0.1:8082 noetl worker start --pool cpu --pool gpu --slots 4
    """
    log_to_stderr("INFO")
    warn_of_unknown_settings()
    run_in_loop(_run_worker(pools, slots, name))


async def _run_worker(
    pools: list[str] | None,
    slots: int | None,
    name: str | None,
) -> None:
    pool_names = ",".join(pools) if pools else None
    worker = read_settings(
        WorkerProcessSettings, worker_pools=pool_names, worker_slots=slots, worker_id=name
    )
    servers = read_settings(HomeSettings).server_urls or [DEFAULT_SERVER]
    say(f"worker of {', '.join(worker.worker_pools)} for {', '.join(servers)}")
    sys.stdout.flush()  # a supervisor's log shows the line at once
    await run_worker(servers, worker, _make_stop_event())


def _make_stop_event() -> asyncio.Event:
    """An event that SIGINT and SIGTERM set."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    return stop
