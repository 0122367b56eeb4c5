"""`noetl exec`: what happened, why, and what to do about it."""

import asyncio
import re
import sys
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from noetl.cli.client import Change, Client, Need, Row, connect, named
from noetl.cli.output import (
    as_called,
    coloured,
    columns,
    lines_of,
    log_lines,
    recovery_line,
    say,
    say_json,
    status_text,
)
from noetl.model.approvals import approval_name
from noetl.model.errors import SAMPLE, Conflict, Expired, InvalidInput, NotFound, Unavailable

if TYPE_CHECKING:
    from noetl.cli.story import Story
    from noetl.log.port import Recorded
    from noetl.model.ids import ExecutionId

ID = Annotated[str, typer.Argument(metavar="ID", help="an execution's id, or @latest")]
Step = Annotated[str, typer.Argument(metavar="STEP", help="a step of its playbook")]
AsJson = Annotated[bool, typer.Option("--json", help="print JSON")]

PAUSE = 0.2  # seconds between looks at an execution that is about to stop
SETTLE = 10.0  # seconds that a cancelled execution of this machine may take to stop

MAX_SAMPLE_ROWS = 20


def register(app: typer.Typer) -> None:
    group = typer.Typer(name="exec", help=ABOUT, no_args_is_help=True, rich_markup_mode=None)
    from noetl.cli.repeats import rerun, retry

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

Work = Callable[[Client], Awaitable[Any]]


def talk(work: Work, need: Need = "read") -> Any:
    async def talking() -> Any:
        async with connect(need) as client:
            return await work(client)

    return asyncio.run(talking())


# ---- reading -----------------------------------------------------------------------------------------------------------


def list_executions(
    status: Annotated[
        str | None,
        typer.Option(
            "--status", help="running, completed, failed, cancelled, paused, quarantined …"
        ),
    ] = None,
    failed: Annotated[bool, typer.Option("--failed", help="the same as --status failed")] = False,
    path: Annotated[
        str | None, typer.Option("--path", help="of this playbook only, or like 'etl/*'")
    ] = None,
    parent: Annotated[
        str | None, typer.Option("--parent", metavar="ID", help="children of this one only")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="T", help="started since: 1d, 2h, or 2026-01-31T08:00:00Z"),
    ] = None,
    before: Annotated[
        str | None,
        typer.Option("--before", metavar="ID", help="older than this one: the next page"),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=500, help="how many")] = 20,
    as_json: AsJson = False,
) -> None:
    """List executions, newest first.

    \b
    Examples:
      noetl exec list --failed --since 1d
      noetl exec list --status running --path 'etl/*'
      noetl exec list --parent @latest
    """
    from noetl.server.services.executions import wanted_executions
    from noetl.worker.app import SystemClock

    if failed and status not in (None, "failed"):
        raise InvalidInput(
            f"--failed and --status {status} exclude each other", hint="give one of them"
        )
    status = "failed" if failed else status
    wanted_executions(
        SystemClock().now(), status, path, None, since
    )  # says what is wrong before anything is asked
    if before is not None and not before.isdecimal():
        raise InvalidInput(
            f"--before {before!r}: not an execution id",
            hint="the id of the last one on the page before",
        )

    async def work(client: Client) -> list[Row]:
        above = None if parent is None else await named(client, parent)
        return await client.executions(
            status=status, path=path, parent=above, since=since, before=before, limit=limit
        )

    rows = talk(work)
    if as_json:
        say_json(rows)
    elif not rows:
        filtered = any((status, path, parent, since, before))
        say(
            "no executions like that"
            if filtered
            else as_called("no executions yet: noetl run FILE starts one")
        )
    else:
        columns(
            ("EXECUTION", "STATUS", "STARTED", "SECONDS", "PLAYBOOK", "ERROR"),
            [_line(row) for row in rows],
        )


def _line(row: Row) -> tuple[Any, ...]:
    times = _minute(row["started_at"]), _seconds(row)
    return (
        row["execution_id"],
        status_text(row["status"], row["recovered"]),
        *times,
        row["path"],
        row["error"],
    )


def _minute(at: str | None) -> str:
    return (at or "")[:19].replace("T", " ")


def _seconds(row: Row) -> str:
    from datetime import datetime

    if not row["started_at"] or not row["ended_at"]:
        return ""
    began, ended = (datetime.fromisoformat(row[name]) for name in ("started_at", "ended_at"))
    return f"{(ended - began).total_seconds():.2f}"


def get(execution: ID, as_json: AsJson = False) -> None:
    """Show one execution: status, workload, steps with their duration, children, failure.

    Example: noetl exec get @latest
    """
    from noetl.cli.details import print_cause, print_children, print_state, print_workload

    async def work(client: Client) -> Row:
        execution_id = await named(client, execution)
        row = await client.execution(execution_id)
        if as_json and row["workload"] is None:
            row["workload"] = await client.workload(execution_id)
        return row

    row = talk(work)
    if as_json:
        say_json(row)
        return
    say(f"execution  {row['execution_id']}")
    say(
        f"playbook   {row['path']}"
        + (f" version {row['version']}" if row["version"] is not None else "")
    )
    say(f"status     {coloured(row['status'], status_text(row['status'], row['recovered']))}")
    say(
        f"started    {_minute(row['started_at'])}"
        + (f"   {_seconds(row)} s" if row["ended_at"] else "")
    )
    if row["parent"]:
        say(f"parent     {row['parent']}")
    if row["retry_of"]:
        say(_origin(row))
    print_workload(row["workload"])
    print_state(row["state"])
    if row["steps"]:
        say()
        columns(
            ("STEP", "STATUS", "RUNS", "TIME", "ITEMS"),
            [_step_line(*each) for each in row["steps"].items()],
        )
    print_children(row["children"])
    if row["recoveries"]:
        say("\nrecovered from:")
    for each in row["recoveries"]:
        say(f"  {recovery_line(each)}")
    if row["failure"]:
        failure = row["failure"]
        say(
            f"\n{coloured('failed', 'error')}: step {failure['step']}: {failure['code']}: {failure['message']}"
        )
        print_cause(row["cause"], row["execution_id"])
        explained = f"why: noetl exec explain {row['execution_id']} {failure['step']}"
        say(as_called(f"{explained}   again: noetl exec retry {row['execution_id']}"))


def _origin(row: Row) -> str:
    """The execution that this one goes on from."""
    if row["from_step"] is None:
        return f"retry of   {row['retry_of']}"
    return f"rerun of   {row['retry_of']} from step {row['from_step']}"


def _step_line(name: str, step: Row) -> tuple[Any, ...]:
    from datetime import UTC, datetime

    from noetl.cli.details import loop_text, seconds_text

    seconds = step["seconds"]
    if step["status"] == "running" and step["started_at"]:
        seconds = (datetime.now(UTC) - datetime.fromisoformat(step["started_at"])).total_seconds()
    return name, step["status"], step["runs"], seconds_text(seconds), loop_text(step["loop"])


def events(
    execution: ID,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="go on until the execution ends")
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
    tell = _as_json if as_json else _Lines()

    async def work(client: Client) -> None:
        execution_id = await named(client, execution)
        await _tell(client, execution_id, tell, frozenset(kinds or ()), follow)

    talk(work)


Tell = Callable[["list[Recorded]"], None]


async def _tell(
    client: Client, execution_id: "ExecutionId", tell: Tell, kinds: frozenset[str], follow: bool
) -> None:
    from noetl.model.events import Terminal

    page, after = await client.events(execution_id), 0
    while page or follow:
        tell([each for each in page if not kinds or each.event.type in kinds])
        if page and isinstance(page[-1].event, Terminal):
            return
        after = page[-1].seq if page else after
        page = await (client.events_after if follow else client.events)(execution_id, after)


def _as_json(page: "list[Recorded]") -> None:
    import msgspec

    from noetl.server.api import shapes

    for each in page:
        sys.stdout.write(msgspec.json.encode(shapes.event(each)).decode() + "\n")
    sys.stdout.flush()


class _Lines:
    """Seconds since the first event, its type, and the words that help to read a list of them."""

    def __init__(self) -> None:
        self._began: int | None = None

    def __call__(self, page: "list[Recorded]") -> None:
        from noetl.cli.story import describe

        for each in page:
            self._began = each.event.at if self._began is None else self._began
            say(
                f"{(each.event.at - self._began) / 1e6:8.3f}  {each.event.type:<24}{describe(each.event)}"
            )


def logs(
    execution: ID,
    step: Annotated[
        str | None, typer.Option("--step", metavar="STEP", help="of this step only")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="go on until the execution ends")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="one line printed per line")] = False,
) -> None:
    """Print what the steps of an execution printed, in the order it came.

    \b
    Examples:
      noetl exec logs @latest
      noetl exec logs @latest --step greet --follow
      noetl exec logs 724551830122291200 --json | jq -r 'select(.stream == "stderr") | .line'
    """

    async def work(client: Client) -> None:
        execution_id, told = await named(client, execution), False
        if step is not None:
            await _check_step(client, execution_id, step)
        async with aclosing(client.logs(execution_id, step, follow=follow)) as pages:
            async for rows in pages:
                told = True
                lines_of(rows) if as_json else log_lines(rows)
        if not told and not as_json:
            say("nothing was printed")

    talk(work)


async def _check_step(client: Client, execution_id: "ExecutionId", step: str) -> None:
    """NotFound when its playbook has no such step. One that is set aside cannot be explained; its logs are there."""
    from noetl.server.states import Unfoldable

    with suppress(Unfoldable, Conflict):
        await client.explain(execution_id, step)


def explain(execution: ID, step: Step, as_json: AsJson = False) -> None:
    """Say why a step ran, did not run, or waits.

    Example: noetl exec explain @latest shout
    """

    async def work(client: Client) -> Row:
        execution_id = await named(client, execution)
        row = await client.explain(execution_id, step)
        if row["verdict"] != "failed":
            return row
        return {**row, "sample": await _sample(client, execution_id, step)}

    row = talk(work)
    if as_json:
        say_json(row)
        return
    say(
        f"{step}: {coloured(row['verdict'])}" + (f", {row['runs']} runs" if row["runs"] > 1 else "")
    )
    for reason in row["because"]:
        say(f"  {as_called(reason)}")
    if row.get("sample") is not None:
        from noetl.cli.results import show_sample  # it takes its arguments from here

        show_sample(row["sample"])


async def _sample(client: Client, execution_id: "ExecutionId", step: str) -> Row | None:
    """The rows that a failed step has kept to show what is wrong; None when it kept none, or they are gone."""
    try:
        found = await client.preview(execution_id, step, MAX_SAMPLE_ROWS)
    except (NotFound, Expired, Unavailable):
        return None
    error = found["error"] or {}
    preview: Row | None = found["preview"]
    return preview if SAMPLE in (error.get("detail") or {}) else None


# ---- changing ----------------------------------------------------------------------------------------------------------


def cancel(execution: ID, as_json: AsJson = False) -> None:
    """Cancel: nothing more is issued, what runs is stopped.

    Example: noetl exec cancel @latest
    """
    _change(execution, "cancel", as_json)


def pause(execution: ID, as_json: AsJson = False) -> None:
    """Pause: what runs goes on, what would come next is held until resume."""
    _change(execution, "pause", as_json)


def resume(execution: ID, as_json: AsJson = False) -> None:
    """Go on with a paused execution."""
    _change(execution, "resume", as_json)


def release(execution: ID, as_json: AsJson = False) -> None:
    """Go on with a quarantined execution, once what set it aside is mended.

    An execution is set aside when an event of it cannot be folded; `noetl exec events ID` shows which.
    """
    _change(execution, "release", as_json)


def _change(execution: str, how: Change, as_json: bool) -> None:
    async def work(client: Client) -> Row:
        execution_id = await named(client, execution)
        asked = await client.change(execution_id, how)
        if how == "cancel" and not client.runs:
            await _ended(client, execution_id)
        return {**asked, "execution": await _status(client, execution_id, asked)}

    row = talk(work, "change")
    if as_json:
        say_json(row)
    elif row["status"] == "refused":
        why = row.get("reason") or f"it is {row['execution']}"
        say(f"execution {row['execution_id']} did not take it: {why}")
    elif row["execution"] is None:
        say(f"{how} of execution {row['execution_id']} requested")
    else:
        say(f"execution {row['execution_id']} is {coloured(row['execution'])}")
    raise typer.Exit(int(row["status"] == "refused"))


async def _status(client: Client, execution_id: "ExecutionId", asked: Row) -> str | None:
    """With what was asked for; None while that is not to be seen."""
    if asked["status"] == "accepted":
        return None
    try:
        return str((await client.execution(execution_id, asked["seq"]))["status"])
    except Unavailable as error:
        if error.code != "NOT_YET":
            raise
        return None


async def _ended(client: Client, execution_id: "ExecutionId") -> None:
    """Nobody but this process looks after it: stay until it has stopped."""
    for _ in range(round(SETTLE / PAUSE)):
        if (await client.execution(execution_id))["ended_at"] is not None:
            return
        await asyncio.sleep(PAUSE)


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
    from noetl.cli.run import plain

    given = plain(payload, "--payload") if payload is not None else None

    async def work(client: Client) -> Row:
        execution_id = await named(client, execution)
        await _warn_of_stranger(client, execution_id, name)
        return await client.signal(execution_id, name, given)

    row = talk(work, "change")
    say_json(row) if as_json else say(f"signal {name} sent to execution {row['execution_id']}")


async def _warn_of_stranger(client: Client, execution_id: "ExecutionId", name: str) -> None:
    """A signal that nothing waits for and that the playbook does not name is most likely a slip."""
    row = await client.execution(execution_id)
    with suppress(NotFound):
        text = (await client.playbook(row["path"], row["version"]))["content"]
        if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text):
            return
    story = await _story(client, execution_id)
    waited = [
        live.parked.signal
        for live in story.state.commands.values()
        if live.parked and live.parked.signal
    ]
    if name not in waited:
        now = f"; it waits for {', '.join(waited)}" if waited else ""
        print(
            f"warning: no step of {row['path']} waits for the signal {name!r}{now}", file=sys.stderr
        )


By = Annotated[
    str | None,
    typer.Option("--by", metavar="WHO", help="who says so; without it, the user of this machine"),
]
Comment = Annotated[str | None, typer.Option("--comment", metavar="TEXT", help="a word on why")]


def approve(
    execution: ID, step: Step, by: By = None, comment: Comment = None, as_json: AsJson = False
) -> None:
    """Approve what a step (`wait` with `approval`) waits for: the execution goes on.

    Example: noetl exec approve @latest ask --comment 'looks good'
    """
    _approval(execution, step, True, by, comment, as_json)


def reject(
    execution: ID, step: Step, by: By = None, comment: Comment = None, as_json: AsJson = False
) -> None:
    """Refuse what a step waits for: the step fails with REJECTED, which its router may handle.

    Example: noetl exec reject @latest ask --comment 'not on a Friday'
    """
    _approval(execution, step, False, by, comment, as_json)


def _approval(
    execution: str, step: str, approved: bool, by: str | None, comment: str | None, as_json: bool
) -> None:
    from getpass import getuser

    who = by or getuser()

    async def work(client: Client) -> Row:
        execution_id = await named(client, execution)
        await client.explain(
            execution_id, step
        )  # says so when there is no such step: a signal would wait for ever
        return await client.signal(
            execution_id, approval_name(step), {"approved": approved, "by": who, "comment": comment}
        )

    row = talk(work, "change")
    verdict = "approved" if approved else "rejected"
    say_json(row) if as_json else say(
        f"step {step} of execution {row['execution_id']} is {verdict} by {who}"
    )


async def _story(client: Client, execution_id: "ExecutionId") -> "Story":
    """From the log: a row of the list may lag behind it."""
    from noetl.cli.story import Story

    story = Story(execution_id)
    while page := await client.events(execution_id, story.last_seq):
        story.add(page)
    return story
