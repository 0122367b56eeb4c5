"""`noetl exec`: lists, shows and changes executions."""

import asyncio
import sys
from collections.abc import Callable
from contextlib import aclosing, suppress
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any, NamedTuple

import msgspec
import typer

from noetl.cli.client import check_page_start, find_execution_id, run_with_client
from noetl.cli.details import (
    format_loop_progress,
    format_seconds,
    print_cause,
    print_children,
    print_state,
    print_workload,
)
from noetl.cli.following import read_through_outage
from noetl.cli.inspection import explain, show_at
from noetl.cli.items import items
from noetl.cli.options import ID, AsJson
from noetl.cli.output import (
    adapt_commands,
    add_colour,
    dim_text,
    format_recovery,
    format_status,
    print_json_lines,
    print_log_lines,
    print_table,
    say,
    say_json,
    shorten_text,
)
from noetl.cli.repeats import rerun, retry
from noetl.cli.signals import approve, reject, signal, warn_if_nobody_runs
from noetl.cli.story import format_event_line
from noetl.cli.waits import PersonWait, list_page_waits, list_wait_lines
from noetl.client.rows import ExecutionChange, Row, RowClient
from noetl.log.events.port import RecordedEvent
from noetl.model.approvals import describe_question
from noetl.model.errors import Conflict, InvalidInput, Unavailable
from noetl.model.events import Terminal
from noetl.model.ids import ExecutionId, Micros
from noetl.runtime.clock import SystemClock
from noetl.server.dispatch.states import Unfoldable
from noetl.server.executions.filters import make_execution_filter
from noetl.server.executions.older_names import check_event_types
from noetl.server.executions.views import NumberedEventView, make_event_view
from noetl.server.http.structs import extend_view

STATUS_POLL_S = 0.2  # seconds between two looks at an execution that is about to stop
MAX_ASKED_CHARS = 60  # of a question in a list
CANCEL_TIMEOUT_S = 10.0  # seconds to wait until a cancelled execution of this machine has stopped


def register(app: typer.Typer) -> None:
    group = typer.Typer(name="exec", help=ABOUT, no_args_is_help=True, rich_markup_mode=None)
    for command in (
        get,
        events,
        logs,
        cancel,
        pause,
        resume,
        release,
        retry,
        rerun,
        explain,
        items,
        signal,
        approve,
        reject,
    ):
        group.command()(command)
    group.command("at")(show_at)
    group.command("list")(list_executions)
    app.add_typer(group)
    app.command()(signal)


ABOUT = """Executions: list them, look into one, change it, run it again.

\b
  noetl exec list --status failed
  noetl exec get @latest             its steps and its failure
  noetl exec explain @latest STEP    why a step ran, did not run, or waits
  noetl exec items @latest STEP      which items of a loop failed, and how
  noetl exec at @latest 71           how it was after one of its events
  noetl exec retry @latest           run again what did not finish
"""

# ---- reading -----------------------------------------------------------------------------------------------------------


Status = Annotated[
    str | None,
    typer.Option(
        "--status",
        help="pending, running, paused, cancelling, quarantined, completed, failed, cancelled; several: failed,running",
    ),
]
OnlyFailed = Annotated[bool, typer.Option("--failed", help="the same as --status failed")]
PathPattern = Annotated[
    str | None,
    typer.Option("--path", help="only of this playbook, or of a pattern such as 'etl/*'"),
]
Parent = Annotated[
    str | None, typer.Option("--parent", metavar="ID", help="only children of this execution")
]
Since = Annotated[
    str | None,
    typer.Option("--since", metavar="T", help="started since: 1d, 2h, or 2026-01-31T08:00:00Z"),
]
Until = Annotated[
    str | None,
    typer.Option("--until", metavar="T", help="started before: 1h, or 2026-01-31T08:00:00Z"),
]
Search = Annotated[
    str | None,
    typer.Option(
        "--search",
        metavar="TEXT",
        help="the id or the path begins with it, or the error has its words",
    ),
]
OnlyWaiting = Annotated[
    bool, typer.Option("--waiting", help="only executions that wait for a person")
]
Before = Annotated[
    str | None,
    typer.Option("--before", metavar="ID", help="only executions before this one: the next page"),
]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, max=500, help="how many")]


def list_executions(
    status: Status = None,
    failed: OnlyFailed = False,
    path: PathPattern = None,
    parent: Parent = None,
    since: Since = None,
    until: Until = None,
    search: Search = None,
    waiting: OnlyWaiting = False,
    before: Before = None,
    limit: Limit = 20,
    as_json: AsJson = False,
) -> None:
    """List executions, newest first.

    \b
    Examples:
      noetl exec list --failed --since 1d
      noetl exec list --status failed,running --path 'etl/*'
      noetl exec list --search "connection refused" --until 1h
      noetl exec list --waiting          approvals, signals, paused executions
      noetl exec list --parent @latest
    """
    status = _choose_status(status, failed)
    # Raises if a filter is wrong, before the command connects.
    make_execution_filter(SystemClock().now(), status, path, None, since, until=until)
    check_page_start(before)

    async def work(client: RowClient) -> list[Row]:
        parent_id = None
        if parent is not None:
            parent_id = await find_execution_id(client, parent)
            await client.get_status(parent_id)  # raises if there is no such execution
        return await client.list_executions(
            status=status,
            path=path,
            parent=parent_id,
            since=since,
            until=until,
            q=search,
            waiting=waiting,
            before=before,
            limit=limit,
        )

    rows = run_with_client(work)
    if as_json:
        say_json(rows)
    elif not rows and any((status, path, parent, since, until, search, waiting, before)):
        say("no executions like that")
    elif not rows:
        say(adapt_commands("no executions yet: noetl run FILE starts one"))
    else:
        _print_executions(rows, waiting)
        if len(rows) == limit:
            oldest = rows[-1]["execution_id"]
            say(dim_text(f"(the newest {limit}; --before {oldest} shows older ones)"))


def _print_executions(rows: list[Row], waiting: bool) -> None:
    header = ("EXECUTION", "STATUS", "STARTED", "SECONDS", "PLAYBOOK", "ERROR")
    if not waiting:
        print_table(header, [_make_execution_row(row) for row in rows])
        return
    table = [(*_make_execution_row(row), _describe_awaited(row["waits_for"])) for row in rows]
    print_table((*header, "WAITS FOR"), table)


def _describe_awaited(awaited: Row | None) -> str:
    """`approval at ask (amount: 950)`, `signal go at poll`, `paused`."""
    if awaited is None:
        return ""
    if awaited["on"] not in ("approval", "signal"):
        return str(awaited["on"])
    thing = "approval" if awaited["on"] == "approval" else f"signal {awaited['name']}"
    asked = describe_question(awaited["question"])
    text = f"{thing} at {awaited['step']}"
    return f"{text} ({shorten_text(asked, MAX_ASKED_CHARS)})" if asked else text


def _choose_status(status: str | None, failed: bool) -> str | None:
    if not failed:
        return status
    if status not in (None, "failed"):
        raise InvalidInput(
            f"--failed and --status {status} exclude each other", hint="give one of them"
        )
    return "failed"


def _make_execution_row(row: Row) -> tuple[Any, ...]:
    return (
        row["execution_id"],
        format_status(row["status"], row["recovered"]),
        _format_second(row["started_at"]),
        _format_duration(row),
        row["path"],
        row["error"],
    )


def _format_second(at: str | None) -> str:
    return (at or "")[:19].replace("T", " ")


def _format_duration(row: Row) -> str:
    if not row["started_at"] or not row["ended_at"]:
        return ""
    began = datetime.fromisoformat(row["started_at"])
    ended = datetime.fromisoformat(row["ended_at"])
    return f"{(ended - began).total_seconds():.2f}"


def get(execution: ID, as_json: AsJson = False) -> None:
    """Show one execution: status, workload, steps with their duration, children, failure.

    Example: noetl exec get @latest
    """

    async def work(client: RowClient) -> Row:
        execution_id = await find_execution_id(client, execution)
        row = await client.get_execution(execution_id)
        if as_json and row["workload"] is None:
            row["workload"] = await client.get_workload(execution_id)
        return {**row, "waits": await _read_waits(client, row)}

    row = run_with_client(work)
    if as_json:
        say_json(row)
    else:
        _print_execution(row)


async def _read_waits(client: RowClient, row: Row) -> list[Row]:
    """What the execution waits for that a person can give."""
    if row["ended_at"] is not None:
        return []
    try:
        page = await client.get_page(ExecutionId(row["execution_id"]))
    except (Unfoldable, Conflict):  # it is quarantined
        return []
    return [wait._asdict() for wait in list_page_waits(page)]


def _print_execution(row: Row) -> None:
    _print_summary(row)
    for wait in row["waits"]:
        lines = list_wait_lines(row["execution_id"], PersonWait(**wait))
        say(f"waits      {next(lines)}")
        for line in lines:
            say(f"           {line}")
    print_workload(row["workload"])
    print_state(row["state"])
    if row["steps"]:
        say()
        print_table(
            ("STEP", "STATUS", "RUNS", "TIME", "ITEMS"),
            [_make_step_row(name, step) for name, step in row["steps"].items()],
        )
    print_children(row["children"], row["execution_id"])
    if row["recoveries"]:
        say("\nrecovered from:")
    for recovery in row["recoveries"]:
        say(f"  {format_recovery(recovery)}")
    if row["failure"]:
        _print_failure(row)


def _print_summary(row: Row) -> None:
    playbook = row["path"]
    if row["version"] is not None:
        playbook += f" version {row['version']}"
    started = _format_second(row["started_at"])
    if row["ended_at"]:
        started += f"   {_format_duration(row)} s"
    say(f"execution  {row['execution_id']}")
    say(f"playbook   {playbook}")
    say(f"status     {add_colour(row['status'], format_status(row['status'], row['recovered']))}")
    say(f"started    {started}")
    if row["parent"]:
        say(f"parent     {row['parent']}")
    if row["retry_of"]:
        say(_describe_origin(row))


def _print_failure(row: Row) -> None:
    execution_id, failure = row["execution_id"], row["failure"]
    error = add_colour("failed", "error")
    say(f"\n{error}: step {failure['step']}: {failure['code']}: {failure['message']}")
    print_cause(row["cause"], execution_id)
    explained = f"why: noetl exec explain {execution_id} {failure['step']}"
    say(adapt_commands(f"{explained}   again: noetl exec retry {execution_id}"))


def _describe_origin(row: Row) -> str:
    """The execution that this one retries or reruns."""
    if row["from_step"] is None:
        return f"retry of   {row['retry_of']}"
    return f"rerun of   {row['retry_of']} from step {row['from_step']}"


def _make_step_row(name: str, step: Row) -> tuple[Any, ...]:
    seconds = step["seconds"]
    if step["status"] == "running" and step["started_at"]:
        age = datetime.now(UTC) - datetime.fromisoformat(step["started_at"])
        seconds = age.total_seconds()
    duration, items = format_seconds(seconds), format_loop_progress(step["loop"])
    return name, step["status"], step["runs"], duration, items


def events(
    execution: ID,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="continue until the execution ends")
    ] = False,
    kinds: Annotated[
        list[str] | None, typer.Option("--type", metavar="T", help="events of this type only")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="one event per line, in the order of the log")
    ] = False,
) -> None:
    """Print the events of an execution in the order of the log.

    The columns: the number of the event, seconds since the first one, its type, and some of its fields. `noetl exec at ID N`
    shows how the execution was after event N.

    \b
    Examples:
      noetl exec events @latest
      noetl exec events @latest --follow --type step.exit
      noetl exec events 724551830122291200 --json | jq .type
    """
    check_event_types(frozenset(kinds or ()), older=False)
    print_page: PrintEvents = _print_events_as_json if as_json else _print_event_lines

    async def work(client: RowClient) -> None:
        execution_id = await find_execution_id(client, execution)
        await _print_events(client, execution_id, print_page, frozenset(kinds or ()), follow)

    run_with_client(work)


class NumberedEvent(NamedTuple):
    """An event, its number in the execution (the first one has 1), and when that one happened."""

    number: int
    recorded: RecordedEvent
    began_at: Micros


PrintEvents = Callable[[list[NumberedEvent]], None]


async def _print_events(
    client: RowClient,
    execution_id: ExecutionId,
    print_page: PrintEvents,
    kinds: frozenset[str],
    follow: bool,
) -> None:
    """Print the events of an execution. An empty set of kinds means every kind."""
    page, after = await client.list_events(execution_id), 0
    count, began_at = 0, 0
    while page or follow:
        shown: list[NumberedEvent] = []
        for row in page:
            count += 1
            began_at = began_at or row.event.at
            if not kinds or row.event.type in kinds:
                shown.append(NumberedEvent(count, row, began_at))
        print_page(shown)
        if page:
            last = page[-1]
            if isinstance(last.event, Terminal):
                return
            after = last.seq
        if follow:
            wait = partial(client.wait_for_events, execution_id, after)
            page = await read_through_outage(wait)
        else:
            page = await client.list_events(execution_id, after)


def _print_events_as_json(page: list[NumberedEvent]) -> None:
    for row in page:
        view = extend_view(NumberedEventView, make_event_view(row.recorded), number=row.number)
        line = msgspec.json.encode(view)
        sys.stdout.write(line.decode() + "\n")
    sys.stdout.flush()


def _print_event_lines(page: list[NumberedEvent]) -> None:
    for row in page:
        say(format_event_line(row.number, row.recorded.event, row.began_at))


def logs(
    execution: ID,
    step: Annotated[
        str | None, typer.Option("--step", metavar="STEP", help="of this step only")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="continue until the execution ends")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="one line printed per line")] = False,
) -> None:
    """Print the output of an execution's steps, in the order in which it came.

    \b
    Examples:
      noetl exec logs @latest
      noetl exec logs @latest --step greet --follow
      noetl exec logs 724551830122291200 --json | jq -r 'select(.stream == "stderr") | .line'
    """

    print_lines = print_json_lines if as_json else print_log_lines

    async def work(client: RowClient) -> None:
        execution_id = await find_execution_id(client, execution)
        await client.get_status(execution_id)  # a stream would wait for a server that is away
        if step is not None:
            await _check_step(client, execution_id, step)
        has_lines = False
        async with aclosing(client.stream_logs(execution_id, step, follow=follow)) as pages:
            async for rows in pages:
                has_lines = True
                print_lines(rows)
        if not has_lines and not as_json:
            say("nothing was printed")

    run_with_client(work)


async def _check_step(client: RowClient, execution_id: ExecutionId, step: str) -> None:
    """Raise NotFound if the playbook has no such step.

    A quarantined execution cannot be explained, so its steps are not checked: its logs exist.
    """
    with suppress(Unfoldable, Conflict):
        await client.explain_step(execution_id, step)


# ---- changing ----------------------------------------------------------------------------------------------------------


def cancel(execution: ID, as_json: AsJson = False) -> None:
    """Cancel an execution: nothing more is started, and running steps are stopped.

    Example: noetl exec cancel @latest
    """
    _change_and_report(execution, "cancel", as_json)


def pause(execution: ID, as_json: AsJson = False) -> None:
    """Pause an execution: running steps finish, and nothing more starts until `resume`."""
    _change_and_report(execution, "pause", as_json)


def resume(execution: ID, as_json: AsJson = False) -> None:
    """Continue a paused execution."""
    _change_and_report(execution, "resume", as_json)


def release(execution: ID, as_json: AsJson = False) -> None:
    """Continue a quarantined execution after its cause is corrected.

    An execution is quarantined if one of its events cannot be folded; `noetl exec events ID` shows which.
    """
    _change_and_report(execution, "release", as_json)


def _change_and_report(execution: str, how: ExecutionChange, as_json: bool) -> None:
    async def work(client: RowClient) -> Row:
        execution_id = await find_execution_id(client, execution)
        answer = await client.change_execution(execution_id, how)
        if how in ("resume", "release") and answer["status"] != "refused":
            warn_if_nobody_runs(client, execution_id)
        if how == "cancel" and not client.has_server:
            await _wait_until_ended(client, execution_id)
        return {**answer, "execution": await _read_changed_status(client, execution_id, answer)}

    row = run_with_client(work, "change")
    if as_json:
        say_json(row)
    elif row["status"] == "refused":
        why = row.get("reason") or f"it is {row['execution']}"
        say(f"execution {row['execution_id']} did not take it: {why}")
    elif row["execution"] is None:
        say(f"{how} of execution {row['execution_id']} requested")
    else:
        say(f"execution {row['execution_id']} is {add_colour(row['execution'])}")
    raise typer.Exit(int(row["status"] == "refused"))


async def _read_changed_status(
    client: RowClient, execution_id: ExecutionId, answer: Row
) -> str | None:
    """The status of the execution after the change, or None if the change does not show yet."""
    if answer["status"] == "accepted":
        return None
    try:
        row = await client.get_execution(execution_id, answer["seq"])
    except Unavailable as error:
        if error.code != "NOT_YET":
            raise
        return None
    return str(row["status"])


async def _wait_until_ended(client: RowClient, execution_id: ExecutionId) -> None:
    """Wait until the execution has ended: without a server only this process can stop it."""
    for _ in range(round(CANCEL_TIMEOUT_S / STATUS_POLL_S)):
        row = await client.get_execution(execution_id)
        if row["ended_at"] is not None:
            return
        await asyncio.sleep(STATUS_POLL_S)
