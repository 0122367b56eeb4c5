"""Output of the commands: columns for people, JSON for programs, errors as sentences with hints."""

import errno
import json
import logging
import os
import re
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TextIO

from noetl.cli.terminal import escape_control, paint_text
from noetl.model.errors import InvalidInput, NoetlError

# Exit codes.
EXIT_FAILED = 1
EXIT_WRONG_USE = 2
EXIT_INTERRUPTED = 130

# ANSI codes by status.
COLOURS = {
    "completed": 32,
    "ok": 32,
    "failed": 31,
    "error": 31,
    "dead": 31,
    "quarantined": 31,
    "cancelled": 33,
    "cancelling": 33,
    "paused": 33,
    "warn": 33,
    "running": 36,
    "pending": 36,
    "skipped": 2,
}


def to_json(value: Any) -> str:
    """JSON for stdout: indented on a terminal, on one line elsewhere."""
    indent = 2 if sys.stdout.isatty() else None
    return json.dumps(value, ensure_ascii=False, indent=indent, default=str)


def say(text: str = "") -> None:
    print(text)


def say_json(value: Any) -> None:
    print(to_json(value))


def say_row(row: Any, sentence: str, *, as_json: bool) -> None:
    """Print the row as JSON, or the sentence that tells a person the same."""
    if as_json:
        say_json(row)
    else:
        say(sentence)


def print_json_lines(rows: Iterable[Any]) -> None:
    """Print each row as one line of JSON."""
    for row in rows:
        line = json.dumps(row, ensure_ascii=False, default=str)
        sys.stdout.write(line + "\n")
    sys.stdout.flush()


def format_log_line(row: dict[str, Any]) -> str:
    """A line that a step printed: `step | out` or `step ! error`.

    `step[3]` is the fourth item of a loop.
    """
    source = row["step"]
    if row["item"] is not None:
        source = f"{source}[{row['item']}]"
    sign = "!" if row["stream"] == "stderr" else "|"
    return f"{source} {sign} {row['line']}"


def print_log_lines(rows: Iterable[dict[str, Any]], *, to: TextIO | None = None) -> None:
    for row in rows:
        print(format_log_line(row), file=to)
    (to or sys.stdout).flush()


def print_table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print a table. Its columns are as wide as their values: the output may be a pipe."""
    texts = [[_format_cell(value) for value in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(header, *texts, strict=True)]
    print(_format_row(header, widths).rstrip())
    for row in texts:
        print(_format_row(row, widths).rstrip())


def _format_row(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(
        add_colour(cell, cell.ljust(width)) for cell, width in zip(cells, widths, strict=True)
    )


def _format_cell(value: Any) -> str:
    if value is None:
        return ""
    text = str(value).replace("\n", " ").replace("\t", " ")
    return shorten_text(escape_control(text), 100)


def shorten_text(text: str, length: int) -> str:
    """The text, cut to `length` characters and ended with `…` if it is longer."""
    if len(text) <= length:
        return text
    return text[: length - 1] + "…"


def format_count(count: int, noun: str) -> str:
    """`1 file`, `2 files`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def add_colour(word: str, text: str | None = None) -> str:
    """`text`, or the word itself, in the colour of a status word. No colour outside a terminal."""
    if text is None:
        text = word
    return paint_text(text, COLOURS.get(word))


def format_status(status: str, recovered: int) -> str:
    """The status and the number of failures that the execution recovered from, if there are any."""
    if not recovered:
        return status
    return f"{status} (recovered: {recovered})"


def format_recovery(recovery: dict[str, Any]) -> str:
    """A failure that the playbook handled, in one line."""
    place = f"step {recovery['step']}"
    if recovery["task"]:
        place += f", task {recovery['task']}"
    problem = f"{recovery['code']}: {recovery['message']}"
    if recovery["count"] > 1:
        problem += f" ({recovery['count']} times)"
    return f"{place}: {problem}, handled by {recovery['by']}"


def dim_text(text: str) -> str:
    return paint_text(text, 2)


# ---- hints -------------------------------------------------------------------------------------------------------------


def adapt_commands(hint: str) -> str:
    """The hint with its commands written as the user called this one.

    `noetl exec get …` becomes `uv run noetl exec get …` or `python -m noetl exec get …`.
    """
    command = find_called_command(sys.argv[0], os.environ)
    if command == COMMAND_NAME:
        return hint
    return _COMMAND_PATTERN.sub(command, hint)


def find_called_command(program: str, environment: Mapping[str, str]) -> str:
    """How the user called NoETL. `program` is the script, or the module after `python -m`."""
    command = COMMAND_NAME
    if os.path.basename(program) == "__main__.py":
        command = "python -m noetl"
    if "UV_RUN_RECURSION_DEPTH" in environment:
        command = f"uv run {command}"
    return command


COMMAND_NAME = "noetl"
_COMMAND_PATTERN = re.compile(r"(?<![\w./-])noetl(?= [a-z])")


# ---- errors ------------------------------------------------------------------------------------------------------------


def print_error(error: BaseException) -> int:
    """Print the error on stderr. Returns the exit code of the command."""
    first = find_first_error(error)
    if isinstance(first, NoetlError):
        print(format_error(first), file=sys.stderr)
        return EXIT_WRONG_USE if isinstance(first, InvalidInput) else EXIT_FAILED
    if isinstance(first, OSError) and first.errno in (errno.ENOSPC, errno.EDQUOT):
        print(f"error: the disk is full: {first.filename or first}", file=sys.stderr)
        print(
            "hint: free some space, or set NOETL_HOME to a directory on another disk",
            file=sys.stderr,
        )
        return EXIT_FAILED
    print(f"error: {type(first).__name__}: {first}", file=sys.stderr)
    print("hint: this is a bug in NoETL; NOETL_DEBUG=1 shows where it happened", file=sys.stderr)
    return EXIT_FAILED


def make_refusal_row(error: NoetlError) -> dict[str, Any]:
    """The output of `noetl run --json` if no execution began. It has the fields of every end."""
    findings = [finding.to_dict() for finding in getattr(error, "findings", ())]
    message = str(error)
    if findings:
        message = message.partition("\n")[0]
    reason = {
        "code": error.code,
        "message": message,
        "step": None,
        "hint": error.hint,
        "findings": findings,
    }
    return {
        "execution_id": None,
        "status": "failed",
        "error": reason,
        "result": None,
        "ctx": {},
        "steps": {},
        "workload": {},
        "children": {"total": 0, "counts": {}, "newest": []},
        "cause": None,
    }


def format_error(error: NoetlError) -> str:
    """The error in words. Its hint is on a second line."""
    text = f"error: {error}"
    if error.hint:
        text += f"\nhint: {adapt_commands(error.hint)}"
    return text


def find_first_error(error: BaseException) -> BaseException:
    """The first NoetlError of an exception group, or the first of its errors. Else the error."""
    while isinstance(error, BaseExceptionGroup):
        ours = (member for member in error.exceptions if isinstance(member, NoetlError))
        error = next(ours, error.exceptions[0])
    return error


# ---- warnings ----------------------------------------------------------------------------------------------------------


def warn(message: str, hint: str | None = None) -> None:
    """Print a warning on stderr, because programs read stdout."""
    text = f"warning: {message}"
    if hint:
        text += f"\n    {hint}"
    print(text, file=sys.stderr)


def show_own_warnings() -> None:
    """Print warnings of this package as `warn` does; those of libraries as Python does."""
    show_others = warnings.showwarning

    def show_warning(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if category.__module__.startswith("noetl."):
            text, _, hint = str(message).partition("\n")
            warn(text, hint)
        else:
            show_others(message, category, filename, lineno, file, line)

    warnings.showwarning = show_warning


def warn_of_unknown_settings() -> None:
    """Warn of `NOETL_*` variables that nothing reads: they are most likely misspelt."""
    names = [name for name in os.environ if name.startswith("NOETL_")]
    if _COMMON_VARIABLES.issuperset(names):
        return
    # The settings take time to load, so most environments are checked without them.
    from noetl.settings import find_unknown_variables

    for name, similar in find_unknown_variables(os.environ).items():
        hint = "docs/settings.md lists the settings"
        if similar:
            hint = f"did you mean {similar}?"
        warn(f"{name} is set, and no setting has that name", hint)


_COMMON_VARIABLES = frozenset(
    {"NOETL_HOME", "NOETL_SERVER_URL", "NOETL_DB_URL", "NOETL_LOG_LEVEL", "NOETL_DEBUG"}
)


# ---- logs --------------------------------------------------------------------------------------------------------------

_STANDARD_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class FieldFormatter(logging.Formatter):
    """A log message and its fields.

    `12:00:01 INFO noetl.runtime.serving server listens address=http://…`
    """

    def format(self, record: logging.LogRecord) -> str:
        extra = {
            name: value for name, value in vars(record).items() if name not in _STANDARD_FIELDS
        }
        fields = "".join(f" {name}={value}" for name, value in extra.items())
        head, newline, trace = super().format(record).partition("\n")
        return head + fields + newline + trace


def log_to_stderr(level: str) -> None:
    """Log messages of `level` and above to stderr. NOETL_LOG_LEVEL overrides the level."""
    level = os.environ.get("NOETL_LOG_LEVEL") or level
    if level.upper() not in logging.getLevelNamesMapping():
        raise InvalidInput(
            f"NOETL_LOG_LEVEL: no level {level!r}", hint="debug, info, warning, error or critical"
        )
    stderr = logging.StreamHandler()
    stderr.setFormatter(
        FieldFormatter("%(asctime)s %(levelname)s %(name)s %(message)s", "%H:%M:%S")
    )
    logging.basicConfig(level=level.upper(), handlers=[stderr], force=True)
    root_level = logging.getLogger().level
    for noisy in ("httpx", "httpcore", "asyncio", "uvicorn.error"):
        logging.getLogger(noisy).setLevel(max(logging.WARNING, root_level))
