"""`noetl exec`: lists, shows, explains and changes executions."""

import asyncio
import re
import sys
from collections.abc import Callable
from contextlib import aclosing, suppress
from datetime import UTC, datetime
from getpass import getuser
from typing import Annotated, Any

import msgspec
import typer

from noetl.cli.client import find_execution_id, run_with_client
from noetl.cli.details import (
    format_loop_progress,
    format_seconds,
    print_cause,
    print_children,
    print_state,
    print_workload,
)
from noetl.cli.options import ID, AsJson, Step
from noetl.cli.output import (
    adapt_commands,
    add_colour,
    format_recovery,
    format_status,
    print_json_lines,
    print_log_lines,
    print_table,
    say,
    say_json,
    say_row,
)
from noetl.cli.payloads import parse_plain_yaml
from noetl.cli.repeats import rerun, retry
from noetl.cli.results import show_sample
from noetl.cli.story import Story, describe_event
from noetl.client.rows import ExecutionChange, Row, RowClient
from noetl.log.events.port import RecordedEvent
from noetl.model.approvals import approval_name
from noetl.model.errors import SAMPLE_KEY, Conflict, Expired, InvalidInput, NotFound, Unavailable
from noetl.model.events import Terminal
from noetl.model.ids import ExecutionId
from noetl.runtime.clock import SystemClock
from noetl.server.dispatch.states import Unfoldable
from noetl.server.executions.service import make_execution_filter
from noetl.server.executions.views import make_event_view

STATUS_POLL_S = 0.2  # seconds between two looks at an execution that is about to stop
CANCEL_TIMEOUT_S = 10.0  # seconds to wait until a cancelled execution of this machine has stopped

MAX_SAMPLE_ROWS = 20


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
        signal,
        approve,
        reject,
    ):
        group.command()(command)
    group.command("list")(list_executions)
    app.add_typer(group)
    app.command()(signal)


ABOUT = """Executions: list them, look into one, change it, run it again.

\b
  noetl exec list --status failed
  noetl exec get @latest             its steps and its failure
  noetl exec explain @latest STEP    why a step ran, did not run, or waits
  noetl exec retry @latest           run again what did not finish
"""

# ---- reading -----------------------------------------------------------------------------------------------------------


Status = Annotated[
    str | None,
    typer.Option(
        "--status",
        help="pending, running, paused, cancelling, quarantined, completed, failed or cancelled",
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
    before: Before = None,
    limit: Limit = 20,
    as_json: AsJson = False,
) -> None:
    """List executions, newest first.

    \b
    Examples:
      noetl exec list --failed --since 1d
      noetl exec list --status running --path 'etl/*'
      noetl exec list --parent @latest
    """
    status = _choose_status(status, failed)
    # Raises if a filter is wrong, before the command connects.
    make_execution_filter(SystemClock().now(), status, path, None, since)
    _check_page_start(before)

    async def work(client: RowClient) -> list[Row]:
        parent_id = None
        if parent is not None:
            parent_id = await find_execution_id(client, parent)
        return await client.list_executions(
            status=status, path=path, parent=parent_id, since=since, before=before, limit=limit
        )

    rows = run_with_client(work)
    if as_json:
        say_json(rows)
    elif not rows and any((status, path, parent, since, before)):
        say("no executions like that")
    elif not rows:
        say(adapt_commands("no executions yet: noetl run FILE starts one"))
    else:
        print_table(
            ("EXECUTION", "STATUS", "STARTED", "SECONDS", "PLAYBOOK", "ERROR"),
            [_make_execution_row(row) for row in rows],
        )


def _choose_status(status: str | None, failed: bool) -> str | None:
    if not failed:
        return status
    if status not in (None, "failed"):
        raise InvalidInput(
            f"--failed and --status {status} exclude each other", hint="give one of them"
        )
    return "failed"


def _check_page_start(before: str | None) -> None:
    if before is not None and not before.isdecimal():
        raise InvalidInput(
            f"--before {before!r}: not an execution id",
            hint="the id of the last one on the page before",
        )


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
        return row

    row = run_with_client(work)
    if as_json:
        say_json(row)
    else:
        _print_execution(row)


def _print_execution(row: Row) -> None:
    _print_summary(row)
    print_workload(row["workload"])
    print_state(row["state"])
    if row["steps"]:
        say()
        print_table(
            ("STEP", "STATUS", "RUNS", "TIME", "ITEMS"),
            [_make_step_row(name, step) for name, step in row["steps"].items()],
        )
    print_children(row["children"])
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

    \b
    Examples:
      noetl exec events @latest
      noetl exec events @latest --follow --type step.exit
      noetl exec events 724551830122291200 --json | jq .type
    """
    print_page: PrintEvents = _print_events_as_json if as_json else _EventPrinter()

    async def work(client: RowClient) -> None:
        execution_id = await find_execution_id(client, execution)
        await _print_events(client, execution_id, print_page, frozenset(kinds or ()), follow)

    run_with_client(work)


PrintEvents = Callable[[list[RecordedEvent]], None]


async def _print_events(
    client: RowClient,
    execution_id: ExecutionId,
    print_page: PrintEvents,
    kinds: frozenset[str],
    follow: bool,
) -> None:
    """Print the events of an execution. An empty set of kinds means every kind."""
    read_page = client.wait_for_events if follow else client.list_events
    page, after = await client.list_events(execution_id), 0
    while page or follow:
        print_page([row for row in page if not kinds or row.event.type in kinds])
        if page:
            last = page[-1]
            if isinstance(last.event, Terminal):
                return
            after = last.seq
        page = await read_page(execution_id, after)


def _print_events_as_json(page: list[RecordedEvent]) -> None:
    for row in page:
        line = msgspec.json.encode(make_event_view(row))
        sys.stdout.write(line.decode() + "\n")
    sys.stdout.flush()


class _EventPrinter:
    """Prints one line per event: seconds since the first event, type, and some of its fields."""

    def __init__(self) -> None:
        self._began: int | None = None

    def __call__(self, page: list[RecordedEvent]) -> None:
        for row in page:
            event = row.event
            if self._began is None:
                self._began = event.at
            seconds = (event.at - self._began) / 1e6
            say(f"{seconds:8.3f}  {event.type:<24}{describe_event(event)}")


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


def explain(execution: ID, step: Step, as_json: AsJson = False) -> None:
    """Say why a step ran, did not run, or waits.

    Example: noetl exec explain @latest shout
    """

    async def work(client: RowClient) -> Row:
        execution_id = await find_execution_id(client, execution)
        row = await client.explain_step(execution_id, step)
        if row["verdict"] != "failed":
            return row
        return {**row, "sample": await _read_sample(client, execution_id, step)}

    row = run_with_client(work)
    if as_json:
        say_json(row)
        return
    verdict = add_colour(row["verdict"])
    if row["runs"] > 1:
        verdict += f", {row['runs']} runs"
    say(f"{step}: {verdict}")
    for reason in row["because"]:
        say(f"  {adapt_commands(reason)}")
    if row.get("sample") is not None:
        show_sample(row["sample"])


async def _read_sample(client: RowClient, execution_id: ExecutionId, step: str) -> Row | None:
    """The rows that a failed step kept to show what is wrong, or None if there are none now."""
    try:
        result = await client.preview_result(execution_id, step, MAX_SAMPLE_ROWS)
    except (NotFound, Expired, Unavailable):
        return None
    error = result["error"] or {}
    preview: Row | None = result["preview"]
    if SAMPLE_KEY in (error.get("detail") or {}):
        return preview
    return None


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


def signal(
    execution: ID,
    name: Annotated[str, typer.Argument(metavar="NAME", help="what a `wait` step waits for")],
    payload: Annotated[
        str | None, typer.Option("--payload", metavar="YAML", help="what it brings; YAML or JSON")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Send a signal to an execution. It is kept until a `wait` of that name takes it.

    Example: noetl signal @latest approved --payload '{by: ada}'
    """
    value = parse_plain_yaml(payload, "--payload") if payload is not None else None

    async def work(client: RowClient) -> Row:
        execution_id = await find_execution_id(client, execution)
        await _warn_of_unknown_signal(client, execution_id, name)
        return await client.send_signal(execution_id, name, value)

    row = run_with_client(work, "change")
    sentence = f"signal {name} sent to execution {row['execution_id']}"
    say_row(row, sentence, as_json=as_json)


async def _warn_of_unknown_signal(client: RowClient, execution_id: ExecutionId, name: str) -> None:
    """Warn of a signal that no step waits for and the playbook does not contain: likely a typo."""
    row = await client.get_execution(execution_id)
    with suppress(NotFound):
        playbook = await client.get_playbook(row["path"], row["version"])
        if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", playbook["content"]):
            return
    story = await _read_story(client, execution_id)
    waits = [command.parked for command in story.state.commands.values() if command.parked]
    signals = [wait.signal for wait in waits if wait.signal]
    if name in signals:
        return
    warning = f"warning: no step of {row['path']} waits for the signal {name!r}"
    if signals:
        warning += f"; it waits for {', '.join(signals)}"
    print(warning, file=sys.stderr)


By = Annotated[
    str | None,
    typer.Option("--by", metavar="WHO", help="who decides; default: the user of this machine"),
]
Comment = Annotated[str | None, typer.Option("--comment", metavar="TEXT", help="the reason")]


def approve(
    execution: ID,
    step: Step,
    by: By = None,
    comment: Comment = None,
    as_json: AsJson = False,
) -> None:
    """Approve what a step (`wait` with `approval`) waits for. The execution continues.

    Example: noetl exec approve @latest ask --comment 'looks good'
    """
    _send_approval(execution, step, True, by, comment, as_json)


def reject(
    execution: ID,
    step: Step,
    by: By = None,
    comment: Comment = None,
    as_json: AsJson = False,
) -> None:
    """Refuse what a step waits for: the step fails with REJECTED, which its router may handle.

    Example: noetl exec reject @latest ask --comment 'not on a Friday'
    """
    _send_approval(execution, step, False, by, comment, as_json)


def _send_approval(
    execution: str,
    step: str,
    approved: bool,
    by: str | None,
    comment: str | None,
    as_json: bool,
) -> None:
    who = by or getuser()

    async def work(client: RowClient) -> Row:
        execution_id = await find_execution_id(client, execution)
        # Raises if there is no such step: the signal would be kept and never taken.
        await client.explain_step(execution_id, step)
        payload = {"approved": approved, "by": who, "comment": comment}
        return await client.send_signal(execution_id, approval_name(step), payload)

    row = run_with_client(work, "change")
    verdict = "approved" if approved else "rejected"
    sentence = f"step {step} of execution {row['execution_id']} is {verdict} by {who}"
    say_row(row, sentence, as_json=as_json)


async def _read_story(client: RowClient, execution_id: ExecutionId) -> Story:
    """The execution, folded from its events: the projection may lag behind them."""
    story = Story(execution_id)
    while page := await client.list_events(execution_id, story.last_seq):
        story.add_events(page)
    return story
