"""What the command says: columns for people, JSON for programs, and errors as a sentence with a hint."""

import errno
import json
import logging
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TextIO

from noetl.model.errors import InvalidInput, NoetlError

FAILED, WRONG_USE, LEFT = 1, 2, 130
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
    return json.dumps(
        value, ensure_ascii=False, indent=2 if sys.stdout.isatty() else None, default=str
    )


def say(text: str = "") -> None:
    print(text)


def say_json(value: Any) -> None:
    print(to_json(value))


def lines_of(rows: Iterable[Any]) -> None:
    """One JSON value per line."""
    for row in rows:
        sys.stdout.write(json.dumps(row, ensure_ascii=False, default=str) + "\n")
    sys.stdout.flush()


def log_line(row: dict[str, Any]) -> str:
    """What a step printed: `step | out`, `step ! error`; `step[3]` is the fourth item of a loop."""
    of = row["step"] if row["item"] is None else f"{row['step']}[{row['item']}]"
    return f"{of} {'!' if row['stream'] == 'stderr' else '|'} {row['line']}"


def log_lines(rows: Iterable[dict[str, Any]], *, to: TextIO | None = None) -> None:
    for row in rows:
        print(log_line(row), file=to)
    (to or sys.stdout).flush()


def columns(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """As wide as its values, whatever the terminal's width: it may be a pipe."""
    texts = [[_cell(value) for value in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(header, *texts, strict=True)]
    print(_row(header, widths).rstrip())
    for row in texts:
        print(_row(row, widths).rstrip())


def _row(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(
        coloured(cell, cell.ljust(width)) for cell, width in zip(cells, widths, strict=True)
    )


def _cell(value: Any) -> str:
    if value is None:
        return ""
    text = str(value).replace("\n", " ")
    return text if len(text) <= 100 else text[:99] + "…"


def coloured(word: str, text: str | None = None) -> str:
    """`text` in the colour of a status word, on a terminal."""
    return _painted(word if text is None else text, COLOURS.get(word))


def status_text(status: str, recovered: int) -> str:
    """With how many failures the execution recovered from: `completed` alone would not say it."""
    return f"{status} (recovered: {recovered})" if recovered else status


def recovery_line(recovery: dict[str, Any]) -> str:
    task = f", task {recovery['task']}" if recovery["task"] else ""
    count = f" ({recovery['count']} times)" if recovery["count"] > 1 else ""
    return f"step {recovery['step']}{task}: {recovery['code']}: {recovery['message']}{count}, handled by {recovery['by']}"


def dim(text: str) -> str:
    return _painted(text, 2)


def _painted(text: str, colour: int | None) -> str:
    plain = colour is None or not sys.stdout.isatty() or "NO_COLOR" in os.environ
    return text if plain else f"\x1b[{colour}m{text}\x1b[0m"


# ---- hints -------------------------------------------------------------------------------------------------------------


def as_called(hint: str) -> str:
    """A hint whose commands begin as the user's did: `uv run noetl exec get …`, `python -m noetl exec get …`."""
    called = command_called(sys.argv[0], os.environ)
    return hint if called == NAME else _COMMAND.sub(called, hint)


def command_called(program: str, environment: Mapping[str, str]) -> str:
    """`program` is what runs: a script, or the module when it was started by `python -m`."""
    called = "python -m noetl" if os.path.basename(program) == "__main__.py" else NAME
    return f"uv run {called}" if "UV_RUN_RECURSION_DEPTH" in environment else called


NAME = "noetl"
_COMMAND = re.compile(r"(?<![\w./-])noetl(?= [a-z])")


# ---- errors ------------------------------------------------------------------------------------------------------------


def complain(error: BaseException) -> int:
    """Say it on stderr; the exit code that it means."""
    told = cause(error)
    if isinstance(told, NoetlError):
        print(explain(told), file=sys.stderr)
        return WRONG_USE if isinstance(told, InvalidInput) else FAILED
    if isinstance(told, OSError) and told.errno in (errno.ENOSPC, errno.EDQUOT):
        print(f"error: the disk is full: {told.filename or told}", file=sys.stderr)
        print(
            "hint: free some space, or set NOETL_HOME to a directory on another disk",
            file=sys.stderr,
        )
        return FAILED
    print(f"error: {type(told).__name__}: {told}", file=sys.stderr)
    print("hint: this is a bug in NoETL; NOETL_DEBUG=1 shows where it happened", file=sys.stderr)
    return FAILED


def refusal(error: NoetlError) -> dict[str, Any]:
    """What `noetl run --json` prints when no execution began, in the shape of any other end."""
    findings = [finding.to_dict() for finding in getattr(error, "findings", ())]
    message = str(error).partition("\n")[0] if findings else str(error)
    told = {
        "code": error.code,
        "message": message,
        "step": None,
        "hint": error.hint,
        "findings": findings,
    }
    return {
        "execution_id": None,
        "status": "failed",
        "error": told,
        "result": None,
        "ctx": {},
        "steps": {},
        "workload": {},
        "children": {"total": 0, "counts": {}, "newest": []},
        "cause": None,
    }


def explain(error: NoetlError) -> str:
    """The error in words; its hint on a line of its own."""
    return f"error: {error}" + (f"\nhint: {as_called(error.hint)}" if error.hint else "")


def cause(error: BaseException) -> BaseException:
    """Of several that ended together, the first that says something."""
    while isinstance(error, BaseExceptionGroup):
        error = next(
            (each for each in error.exceptions if isinstance(each, NoetlError)), error.exceptions[0]
        )
    return error


# ---- warnings ----------------------------------------------------------------------------------------------------------


def warn(message: str, hint: str | None = None) -> None:
    """On stderr: what a program prints stays what it is."""
    print(f"warning: {message}" + (f"\n    {hint}" if hint else ""), file=sys.stderr)


def warn_of_unknown_settings() -> None:
    """A variable that nothing reads is a slip that would change nothing, silently."""
    if not any(name.startswith("NOETL_") and name not in _USUAL_VARIABLES for name in os.environ):
        return
    from noetl.settings import (
        unknown_variables,  # takes time to load, and most environments need no look at it
    )

    for name, meant in unknown_variables(os.environ).items():
        hint = f"did you mean {meant}?" if meant else "docs/settings.md lists the settings"
        warn(f"{name} is set, and no setting has that name", hint)


_USUAL_VARIABLES = frozenset(
    {"NOETL_HOME", "NOETL_SERVER_URL", "NOETL_DB_URL", "NOETL_LOG_LEVEL", "NOETL_DEBUG"}
)


# ---- logs --------------------------------------------------------------------------------------------------------------

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class Fields(logging.Formatter):
    """The message and its fields: `12:00:01 INFO noetl.server.app server listens address=http://…`."""

    def format(self, record: logging.LogRecord) -> str:
        fields = "".join(
            f" {name}={value}" for name, value in vars(record).items() if name not in _STANDARD
        )
        head, newline, trace = super().format(record).partition("\n")
        return head + fields + newline + trace


def log_to_stderr(level: str) -> None:
    """From `level` on, unless NOETL_LOG_LEVEL says otherwise."""
    level = os.environ.get("NOETL_LOG_LEVEL") or level
    if level.upper() not in logging.getLevelNamesMapping():
        raise InvalidInput(
            f"NOETL_LOG_LEVEL: no level {level!r}", hint="debug, info, warning, error or critical"
        )
    shown = logging.StreamHandler()
    shown.setFormatter(Fields("%(asctime)s %(levelname)s %(name)s %(message)s", "%H:%M:%S"))
    logging.basicConfig(level=level.upper(), handlers=[shown], force=True)
    for noisy in ("httpx", "httpcore", "asyncio", "uvicorn.error"):
        logging.getLogger(noisy).setLevel(max(logging.WARNING, logging.getLogger().level))
