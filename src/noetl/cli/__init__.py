"""The `noetl` command: one module per group of commands.

It runs in the user's process and may import every other package; no package imports it.
A user's mistake is answered with one line and a hint. `NOETL_DEBUG=1` shows the stack trace.
"""

import os
import sys
from collections.abc import Collection, Iterable
from importlib import import_module
from typing import Annotated, NamedTuple

import typer

from noetl.cli.groups import RootGroup
from noetl.cli.output import EXIT_INTERRUPTED, log_to_stderr, print_error, show_own_warnings
from noetl.cli.terminal import guard_streams
from noetl.runtime.garbage import reduce_garbage_collection

ABOUT = """Run playbooks: YAML documents that describe data work as steps, loops, branches and retries.

\b
Begin here:
  noetl validate FILE        check it: where is it wrong, and what was probably meant
  noetl graph FILE           draw its steps
  noetl test DIR             test it with stubs instead of tools
  noetl run FILE             run it on this machine, and keep what happened
  noetl exec get @latest     show the last execution
  noetl ui @latest           show it in a browser

\b
And then:
  noetl dev DIR              a server and a worker; playbooks are registered when you save them
  noetl server start         a server as a process of its own, with
  noetl worker start           any number of workers
  noetl schedule add …       start playbooks by the clock; `noetl hook`: by a call from outside

Without NOETL_SERVER_URL commands work on the database of this machine, below NOETL_HOME (~/.noetl). ID is an execution's id or
@latest. `noetl COMMAND --help` explains a command with examples; every one that shows something takes --json.
"""


class CommandEntry(NamedTuple):
    """The module of a command or of a group of commands, and its line in the help."""

    module: str
    summary: str


# A call loads the module of its command only, so that modules import at the top what they need.
# The other commands are shown by name and summary. A test compares both with the modules.
COMMANDS = {
    "run": CommandEntry("run", "Run a playbook and wait for its end."),
    "test": CommandEntry(
        "testing", "Run tests of playbooks, without a server, a database or calls to other systems."
    ),
    "validate": CommandEntry("playbooks", "Check playbooks without running them."),
    "schema": CommandEntry(
        "playbooks", "Print the JSON Schema of the playbook language, for editors."
    ),
    "convert": CommandEntry("playbooks", "Rewrite a playbook in the current spelling."),
    "graph": CommandEntry(
        "playbooks", "Draw the steps and arcs of a playbook as a tree, or as Mermaid for documents."
    ),
    "signal": CommandEntry("executions", "Send a signal to an execution."),
    "trace": CommandEntry(
        "results",
        "Show what the result of a step was made from, step by step, across executions.",
    ),
    "dev": CommandEntry(
        "server",
        "Start a server and a worker in one process, and register the playbooks of a folder whenever they are saved.",
    ),
    "openapi": CommandEntry("server", "Print the OpenAPI document of the server."),
    "ui": CommandEntry(
        "page", "Open the page in a browser: the list of executions, or one of them."
    ),
    "verify": CommandEntry(
        "jobs",
        "Fold executions from their events, compare them with the stored rows, and print every difference.",
    ),
    "sql": CommandEntry(
        "jobs",
        "Query the log with Spark SQL: the tables `events`, `executions` and `results`, and rows of results by name.",
    ),
    "doctor": CommandEntry(
        "doctor", "Look for what is stuck, lost or behind, and say what to do about it."
    ),
}
GROUPS = {
    "exec": CommandEntry(
        "executions", "Executions: list them, look into one, change it, run it again."
    ),
    "result": CommandEntry("results", "Show and save the data that steps have made."),
    "catalog": CommandEntry(
        "catalog", "Playbooks as they are registered: by path, each text with a version of its own."
    ),
    "credential": CommandEntry(
        "credentials",
        "Credentials that playbooks use by name: stored encrypted, shown to nobody, opened by workers alone.",
    ),
    "token": CommandEntry(
        "tokens", "Tokens with which people, programs and workers call a server."
    ),
    "tenant": CommandEntry(
        "tenants",
        "Tenants: groups of users who share an installation and see nothing of each other.",
    ),
    "user": CommandEntry("users", "People who sign in to the page with a name and a password."),
    "audit": CommandEntry(
        "audit",
        "Who changed what: tokens, credentials, playbooks, schedules, hooks, executions, and refused calls.",
    ),
    "state": CommandEntry(
        "state", "Values that a playbook keeps between its executions: watermarks, cursors, counts."
    ),
    "schedule": CommandEntry(
        "schedules",
        "Playbooks that start by the clock: at times (cron, in a time zone) or at an interval.",
    ),
    "hook": CommandEntry(
        "hooks",
        "Playbooks that start by a call from outside: POST /api/hooks/NAME, with a JSON body.",
    ),
    "server": CommandEntry("server", "A server as a process of its own."),
    "worker": CommandEntry("worker", "A worker as a process of its own."),
    "spark": CommandEntry("spark", "The Spark server of this machine."),
    "job": CommandEntry("jobs", "Run one of NoETL's own pipelines over its log."),
}
ENTRIES = {**COMMANDS, **GROUPS}
ALL_MODULES = (
    "run",
    "testing",
    "playbooks",
    "executions",
    "results",
    "catalog",
    "credentials",
    "tokens",
    "tenants",
    "users",
    "audit",
    "state",
    "schedules",
    "hooks",
    "server",
    "page",
    "worker",
    "spark",
    "jobs",
    "doctor",
)


def main() -> None:
    """The entry point of `noetl`."""
    reduce_garbage_collection()
    guard_streams()
    try:
        log_to_stderr("ERROR")
        show_own_warnings()
        application = make_application(choose_modules(_read_arguments()))
        application()
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


def make_application(modules: Collection[str] = ALL_MODULES) -> typer.Typer:
    """The Typer application with the commands of the given modules, and placeholders for others."""
    app = typer.Typer(
        name="noetl",
        cls=RootGroup,
        help=ABOUT,
        no_args_is_help=True,
        add_completion=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(root)
    for module in modules:
        import_module(f"noetl.cli.{module}").register(app)
    for name, command in COMMANDS.items():
        if command.module not in modules:
            app.command(name, help=command.summary)(_run_placeholder)
    for name, group in GROUPS.items():
        if group.module not in modules:
            app.add_typer(typer.Typer(name=name, help=group.summary))
    return app


def _run_placeholder() -> None:
    raise RuntimeError("a placeholder is shown by --help and never runs")


def choose_modules(arguments: Iterable[str]) -> tuple[str, ...]:
    """The module of the command that the arguments call, if they call one."""
    for argument in arguments:
        if argument.startswith("-"):
            continue
        entry = ENTRIES.get(argument)
        return () if entry is None else (entry.module,)
    return ()


def _read_arguments() -> list[str]:
    """The arguments of this process, or those that the user types while the shell completes them."""
    typed = os.environ.get("_TYPER_COMPLETE_ARGS") or os.environ.get("COMP_WORDS")
    if typed and "_NOETL_COMPLETE" in os.environ:
        return typed.split()[1:]
    return sys.argv[1:]


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
        from importlib import metadata  # loads dozens of modules for one number

        print(f"noetl {metadata.version('noetl')}")
        raise typer.Exit
