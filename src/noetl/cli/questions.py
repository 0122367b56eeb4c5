"""Questions that a command asks at the terminal before it changes much."""

import sys

import typer

from noetl.cli.output import EXIT_FAILED
from noetl.model.errors import InvalidInput

YES_WORDS = ("y", "yes")


def check_answerable(yes: bool, as_json: bool, change: str) -> None:
    """Raise InvalidInput if a command would ask, and nobody is there to answer."""
    if yes or (sys.stdin.isatty() and not as_json):
        return
    reason = "with --json nobody is asked" if as_json else "there is no terminal to ask at"
    raise InvalidInput(
        f"{change} is not done without a yes, and {reason}",
        hint="--yes does it without asking; --dry-run shows what would be done",
    )


def confirm_or_exit(question: str) -> None:
    """Ask, and end the command unless the answer is yes.

    Called outside the event loop: in it, Ctrl-C would wait for the answer.
    """
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    answer = sys.stdin.readline()
    if answer.strip().lower() in YES_WORDS:
        return
    print("nothing was changed", file=sys.stderr)
    raise typer.Exit(EXIT_FAILED)
