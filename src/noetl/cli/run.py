"""`noetl run`: starts a playbook, follows the execution to its end, and reports it."""

import asyncio
import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread
from typing import Annotated, Any

import typer

from noetl.cli.arguments import PlaybookSource, suggest_file
from noetl.cli.options import Assignments, PayloadFile
from noetl.cli.output import (
    find_first_error,
    make_refusal_row,
    print_error,
    warn_of_unknown_settings,
)
from noetl.model.errors import InvalidInput, NoetlError
from noetl.runtime.event_loop import run_in_loop

_ON_SPARK = re.compile(r"""\b(kind|exec):\s*["']?spark\b""")


def register(app: typer.Typer) -> None:
    app.command()(run)


File = Annotated[
    str, typer.Argument(metavar="FILE|PATH", help="a playbook file, or a path of the catalog")
]
Memory = Annotated[
    bool,
    typer.Option("--memory", help="log, queue and results in this process; gone when it ends"),
]
ChildFiles = Annotated[
    list[Path] | None,
    typer.Option("--with", metavar="FILE", help="a playbook that this one calls as a child"),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="check it and say what it would do and need; run nothing")
]
AsJson = Annotated[bool, typer.Option("--json", help="print one JSON object and nothing else")]
Watch = Annotated[bool, typer.Option("--watch", "-w", help="print every event as it is recorded")]
Logs = Annotated[
    bool, typer.Option("--logs", "-l", help="show what its steps print, as they print it")
]
Detach = Annotated[
    bool,
    typer.Option("--detach", "-d", help="start it on the server of this home, and do not wait"),
]


def run(
    file: File,
    memory: Memory = False,
    assignments: Assignments = None,
    payload: PayloadFile = None,
    also: ChildFiles = None,
    dry: DryRun = False,
    as_json: AsJson = False,
    watch: Watch = False,
    logs: Logs = False,
    detach: Detach = False,
) -> None:
    """Run a playbook and wait for its end.

    A file is registered under its own path first. Without NOETL_SERVER_URL everything happens in this process, on the database
    of NOETL_HOME, which is made at the first run and keeps what happened; with it, the server and its workers do it.

    Prints its steps, then the result of the last one, or the first failure that nothing handled and where it happened.
    Values given with --set win over those of --payload, and both over the playbook's own workload. Ctrl-C cancels it; a
    second Ctrl-C leaves at once.

    With --detach a server runs it: that of NOETL_SERVER_URL, else one that runs on this home (`noetl dev`). The command prints
    the id and the address of the page, and ends.

    Exit code: 0 completed, 1 failed or cancelled, 2 the playbook or the arguments are wrong, 130 left.

    \b
    Examples:
      noetl run examples/hello.yaml
      noetl run examples/loop.yaml --set count=100 --json
      noetl run invoices.yaml --payload january.json --watch
      noetl run examples/hello.yaml --logs
      noetl run examples/hello              a playbook of the catalog
      noetl run --memory examples/hello.yaml
      noetl run invoices.yaml --set limit=5 --dry-run
      noetl run invoices.yaml --detach      with `noetl dev` in another terminal
    """
    warn_of_unknown_settings()
    with _print_refusal_as_json(as_json):
        source = PlaybookSource.from_argument(file)
        others = [PlaybookSource.from_argument(str(path)) for path in also or []]
        workload = _read_workload(payload, assignments or [])
        if dry:
            from noetl.cli.dryrun import dry_run  # only a dry run needs it

            return dry_run(source, workload, assignments or [], as_json)
        if memory and source.text is None:
            raise InvalidInput(
                f"{file}: no such file",
                hint=suggest_file(Path(file)) or "--memory runs files only",
            )
        if detach:
            _check_detached(memory=memory, watch=watch, logs=logs)
        elif not memory:
            _start_services_early(source)
        # Loaded while the database starts.
        from noetl.cli import following, launch

        if detach:
            starting = launch.start_detached(source, others, workload, assignments or [], as_json)
            return run_in_loop(starting)
        show = following.make_display(as_json, watch, logs)
        running = launch.run_playbook(memory, source, others, workload, assignments or [], show)
        story = run_in_loop(running)
    following.finish_command(story, as_json, durable=not memory, lines=show.list_last_lines())


def _check_detached(**unsuitable: bool) -> None:
    """Raise if another option cannot be had without waiting, or without a server."""
    for name, is_given in unsuitable.items():
        if is_given:
            raise InvalidInput(
                f"--{name} and --detach exclude each other",
                hint="noetl exec events ID and noetl exec logs ID follow an execution",
            )


def _read_workload(payload: Path | None, assignments: list[str]) -> dict[str, Any]:
    """The values of `--payload` and `--set`."""
    if payload is None and not assignments:
        return {}
    from noetl.cli import payloads  # the language takes time to load

    return payloads.merge_assignments(payloads.read_payload(payload), assignments)


@contextmanager
def _print_refusal_as_json(as_json: bool) -> Iterator[None]:
    """With `--json`, print a JSON object even if no execution began."""
    try:
        yield
    except Exception as error:
        reason = find_first_error(error)
        if not as_json or not isinstance(reason, NoetlError):
            raise
        row = json.dumps(make_refusal_row(reason), ensure_ascii=False)
        sys.stdout.write(row + "\n")
        raise typer.Exit(print_error(reason)) from error


def _start_services_early(source: PlaybookSource) -> None:
    """Start the database, and Spark if a step needs it, while this process still loads modules.

    Errors are ignored here: the first real use reports them.
    """
    if os.environ.get("NOETL_SERVER_URL"):
        return
    if _ON_SPARK.search(source.text or ""):
        spark = Thread(target=_start_spark_early, args=(source,), name="early-spark", daemon=True)
        spark.start()
    if os.environ.get("NOETL_DB_URL"):
        return
    from noetl.embedded import ensure  # a command with a server does not need it

    def start_database() -> None:
        with suppress(Exception):
            asyncio.run(ensure())

    # Not a daemon: the process must not end in the middle of making a database.
    Thread(target=start_database, name="early").start()


def _start_spark_early(source: PlaybookSource) -> None:
    from noetl.runtime.early_spark import start_spark_for  # few playbooks need it

    with suppress(Exception):
        start_spark_for(source.text or "", source.name)
