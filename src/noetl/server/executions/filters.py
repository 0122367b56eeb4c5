"""The filter of a list of executions, from the parameters of a request or a command."""

from contextlib import suppress
from datetime import UTC, datetime

from noetl.log.projections.port import MAX_ID_DIGITS, ExecutionFilter
from noetl.model.errors import InvalidInput
from noetl.model.ids import ExecutionId, Micros
from noetl.model.statuses import STATUSES
from noetl.playbook import durations

MAX_MOMENT: Micros = 1 << 62


def make_execution_filter(
    now: Micros,
    status: str | None = None,
    path: str | None = None,
    parent: str | None = None,
    since: str | None = None,
    roots: bool = False,
    until: str | None = None,
    q: str | None = None,
    waiting: bool = False,
) -> ExecutionFilter:
    """The filter for these query parameters.

    `status` is one or several, separated by commas. `since` and `until` are times, or how long
    before `now`. `q` is the beginning of an id or of a path, or words of the error.
    """
    text = (q or "").strip()
    is_id = text.isascii() and text.isdigit()
    return ExecutionFilter(
        statuses=parse_statuses(status),
        path=path,
        parent=None if parent is None else ExecutionId(parent),
        since=None if since is None else parse_moment("since", since, now),
        until=None if until is None else parse_moment("until", until, now),
        roots=roots,
        waiting=waiting,
        id_prefix=text[: MAX_ID_DIGITS + 1] if is_id else "",
        text="" if is_id else text,
    )


def parse_moment(name: str, text: str, now: Micros) -> Micros:
    """Parse a time, or how long ago it is: `2026-01-31T08:00:00Z`, `1d`."""
    with suppress(ValueError):
        return now - durations.parse_micros(text)
    try:
        time = datetime.fromisoformat(text)
    except ValueError as error:
        hint = "how long ago (1d, 2h, 30m), or ISO 8601, for example 2026-01-31T08:00:00Z"
        raise InvalidInput(f"{name}: {text!r} is not a time", hint=hint) from error
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    return round(time.timestamp() * 1_000_000)


def parse_statuses(text: str | None) -> tuple[str, ...]:
    """The statuses of the list. Raises `InvalidInput` if no execution ever has one of them, instead
    of finding nothing."""
    statuses = tuple(filter(None, (text or "").split(",")))
    for status in statuses:
        if status not in STATUSES:
            raise InvalidInput(
                f"no execution is ever {status!r}", hint=f"statuses: {', '.join(STATUSES)}"
            )
    return tuple(dict.fromkeys(statuses))
