"""The `noetl` command: one module per group of commands.

It runs in the user's process and may import every other package; no package imports it.
A user's mistake is answered with one line and a hint. `NOETL_DEBUG=1` shows the stack trace.
"""

import os
import sys
from typing import Annotated

import typer

from noetl.cli.event_loop import reduce_garbage_collection
from noetl.cli.output import EXIT_INTERRUPTED, log_to_stderr, print_error

ABOUT = """Run playbooks: YAML documents that describe data work as steps, loops, branches and retries.

\b
Begin here:
  noetl validate FILE        check it: where is it wrong, and what was probably meant
  noetl graph FILE           draw its steps
  noetl test DIR             test it with stubs instead of tools
  noetl run FILE             run it on this machine, and keep what happened
  noetl exec get @latest     show the last execution

\b
And then:
  noetl dev DIR              a server and a worker; playbooks are registered when you save them
  noetl server start         a server as a process of its own, with
  noetl worker start           any number of workers
  noetl schedule add …       start playbooks by the clock; `noetl hook`: by a call from outside

Without NOETL_SERVER_URL commands work on the database of this machine, below NOETL_HOME (~/.noetl). ID is an execution's id or
@latest. `noetl COMMAND --help` explains a command with examples; every one that shows something takes --json.
"""


def main() -> None:
    """The entry point of `noetl`."""
    reduce_garbage_collection()
    try:
        log_to_stderr("ERROR")
        make_application()()
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except BrokenPipeError:  # `noetl exec list | head`: the reader has closed the pipe
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, sys.stdout.fileno())
        sys.exit(0)
    except Exception as error:  # the outermost border: users get words, not a stack trace
        if os.environ.get("NOETL_DEBUG"):
            raise
        sys.exit(print_error(error))


def make_application() -> typer.Typer:
    """The Typer application with the commands of all modules."""
    from noetl.cli import (
        catalog,
        credentials,
        doctor,
        executions,
        hooks,
        jobs,
        playbooks,
        results,
        run,
        schedules,
        server,
        spark,
        state,
        testing,
        worker,
    )

    app = typer.Typer(
        name="noetl",
        help=ABOUT,
        no_args_is_help=True,
        add_completion=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(root)
    for module in (
        run,
        testing,
        playbooks,
        executions,
        results,
        catalog,
        credentials,
        state,
        schedules,
        hooks,
        server,
        worker,
        spark,
        jobs,
        doctor,
    ):
        module.register(app)
    return app


def root(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="print the version and exit",
            callback=lambda asked: _print_version(asked),
            is_eager=True,
        ),
    ] = False,
) -> None:
    # The help of the whole command is ABOUT; a docstring here would replace it.
    pass


def _print_version(is_asked: bool) -> None:
    if is_asked:
        from importlib.metadata import version as installed

        print(f"noetl {installed('noetl')}")
        raise typer.Exit
