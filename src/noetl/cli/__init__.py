"""The `noetl` command: one module per group of commands. Stands on top of everything; nothing imports it.

What a user did wrong is answered with one line and a hint, never a stack trace; `NOETL_DEBUG=1` shows it.
"""

import os
import sys
from importlib.metadata import version as installed
from typing import Annotated

import typer

from noetl.model.errors import InvalidInput, NoetlError

WRONG_USE, FAILED = 2, 1

ABOUT = """Run playbooks: YAML documents that describe data work as steps, loops, branches and retries.

\b
Begin here:
  noetl validate FILE        is it right? where not, and what was meant
  noetl graph FILE           draw its steps
  noetl run --memory FILE    run it here and now, in this process

`noetl COMMAND --help` explains a command with examples.
"""


def main() -> None:
    """The entry point of `noetl`."""
    try:
        application()()
    except NoetlError as error:
        if os.environ.get("NOETL_DEBUG"):
            raise
        print(explain(error), file=sys.stderr)
        sys.exit(WRONG_USE if isinstance(error, InvalidInput) else FAILED)


def explain(error: NoetlError) -> str:
    """The error in words; its hint on a line of its own."""
    return f"error: {error}" + (f"\nhint: {error.hint}" if error.hint else "")


def application() -> typer.Typer:
    from noetl.cli import playbooks, run

    app = typer.Typer(
        name="noetl",
        help=ABOUT,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(root)
    run.register(app)
    playbooks.register(app)
    return app


def root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="print the version and leave", callback=lambda asked: _version(asked), is_eager=True
        ),
    ] = False,
) -> None:
    # The help of the whole command is ABOUT; a docstring here would replace it.
    pass


def _version(asked: bool) -> None:
    if asked:
        print(f"noetl {installed('noetl')}")
        raise typer.Exit
