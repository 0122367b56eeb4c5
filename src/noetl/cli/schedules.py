"""`noetl schedule`: starts playbooks by the clock."""

from typing import Annotated, Any

import typer

from noetl.cli.client import run_with_client
from noetl.cli.options import AsJson, Assignments, PayloadFile
from noetl.cli.output import print_table, say, say_json, say_row
from noetl.cli.payloads import merge_assignments, read_payload
from noetl.client.rows import Row, RowClient, ScheduleChange
from noetl.model.errors import InvalidInput

ABOUT = """Playbooks that start by the clock: at times (cron, in a time zone) or at an interval.

\b
  noetl schedule add nightly reports/daily --cron '0 2 * * *' --timezone Europe/Berlin
  noetl schedule add poll queues/drain --every 15m --overlap skip
  noetl schedule next nightly          its next slots
  noetl schedule show nightly          its rule and what it did last

Schedules work while `noetl server start` or `noetl dev` runs; each slot is started by one server. An execution finds its
slot in workload.schedule.slot.
"""
CATCH_UP_POLICIES = ("skip", "last", "all")
OVERLAP_POLICIES = ("allow", "skip", "queue")
Name = Annotated[str, typer.Argument(metavar="NAME", help="its name")]
PlaybookPath = Annotated[str, typer.Argument(metavar="PATH", help="a playbook of the catalog")]
Cron = Annotated[
    str | None,
    typer.Option("--cron", metavar="C", help="minute hour day month weekday; or @daily, @hourly …"),
]
Timezone = Annotated[
    str | None,
    typer.Option(
        "--timezone",
        "--tz",
        metavar="Z",
        help="the time zone of the cron expression; UTC if not given",
    ),
]
Interval = Annotated[
    str | None, typer.Option("--every", metavar="D", help="an interval: 30s, 15m, 2h, 1d")
]
Version = Annotated[
    int | None,
    typer.Option("--version", min=1, help="this version; without it the latest at each slot"),
]
CatchUp = Annotated[
    str,
    typer.Option(
        "--catch-up", metavar="P", help="slots that came while no server ran: skip, last or all"
    ),
]
Overlap = Annotated[
    str,
    typer.Option(
        "--overlap", metavar="P", help="while the execution before runs: allow, skip or queue"
    ),
]


def register(app: typer.Typer) -> None:
    group = typer.Typer(name="schedule", help=ABOUT, no_args_is_help=True, rich_markup_mode=None)
    group.command()(add)
    group.command("list")(list_schedules)
    for command in (show, pause, resume, delete):
        group.command()(command)
    group.command("next")(next_slots)
    app.add_typer(group)


def add(
    name: Name,
    path: PlaybookPath,
    cron: Cron = None,
    timezone: Timezone = None,
    every: Interval = None,
    version: Version = None,
    assignments: Assignments = None,
    payload: PayloadFile = None,
    catch_up: CatchUp = "last",
    overlap: Overlap = "allow",
    as_json: AsJson = False,
) -> None:
    """Add a schedule. A schedule of the same name is replaced, and continues from now.

    \b
    Catch-up, for slots more than ten seconds late:
      skip   they are skipped
      last   the last of them runs, once
      all    each of them runs

    \b
    Overlap, while the execution of the slot before still runs:
      allow  they run side by side
      skip   the slot is skipped, and counted
      queue  the slot waits for its turn

    When clocks change, a time that does not exist runs right after the gap, and a time that exists twice runs once.

    \b
    Examples:
      noetl schedule add nightly reports/daily --cron '30 2 * * *' --timezone Europe/Berlin
      noetl schedule add backfill loads/hour --cron @hourly --catch-up all --overlap queue
      noetl schedule add poll queues/drain --every 15m --overlap skip --set limit=500
    """
    _check_policy("catch-up", catch_up, CATCH_UP_POLICIES)
    _check_policy("overlap", overlap, OVERLAP_POLICIES)
    schedule: dict[str, Any] = {
        "name": name,
        "path": path,
        "version": version,
        "cron": cron,
        "timezone": timezone,
        "every": every,
        "payload": merge_assignments(read_payload(payload), assignments or []),
        "catch_up": catch_up,
        "overlap": overlap,
    }
    row = run_with_client(lambda client: client.add_schedule(**schedule))
    change = "added" if row["created"] else "replaced"
    say_row(row, f"schedule {name} is {change}; next at {row['next_at']}", as_json=as_json)


def _check_policy(option: str, value: str, policies: tuple[str, ...]) -> None:
    if value not in policies:
        raise InvalidInput(
            f"--{option} {value!r}: there is no such policy", hint=", ".join(policies)
        )


def list_schedules(as_json: AsJson = False) -> None:
    """List schedules with their next slot."""
    rows = run_with_client(lambda client: client.list_schedules())
    if as_json:
        say_json(rows)
    elif not rows:
        say("no schedules: noetl schedule add NAME PATH --cron C adds one")
    else:
        print_table(
            ("NAME", "STATUS", "RULE", "NEXT", "LAST EXECUTION", "PLAYBOOK", "ERROR"),
            [_make_schedule_row(row) for row in rows],
        )


def _make_schedule_row(row: Row) -> tuple[Any, ...]:
    moment = (row["next_at"] or "")[:19].replace("T", " ")
    return (
        row["name"],
        _schedule_status(row),
        _describe_rule(row),
        moment,
        row["last_execution"],
        row["path"],
        row["error"],
    )


def show(name: Name, as_json: AsJson = False) -> None:
    """Show one schedule: its rule, its policies, what it did last and what waits.

    Example: noetl schedule show nightly
    """
    row = run_with_client(lambda client: client.get_schedule(name))
    if as_json:
        say_json(row)
        return
    version = f" version {row['version']}" if row["version"] else ""
    facts = {
        "schedule": f"{row['name']}   {_schedule_status(row)}",
        "playbook": row["path"] + version,
        "rule": _describe_rule(row),
        "policies": f"catch-up {row['catch_up']}, overlap {row['overlap']}",
        "payload": row["payload"] or None,
        "next": row["next_at"],
        "last slot": row["last_at"],
        "execution": row["last_execution"],
        "waiting": ", ".join(row["waiting"]) or None,
        "skipped": row["skipped"] or None,
        "error": row["error"],
    }
    for label, value in facts.items():
        if value is not None:
            say(f"{label:<10} {value}")


def pause(name: Name, as_json: AsJson = False) -> None:
    """Pause a schedule: it starts nothing until `resume`. Running executions continue."""
    _change_schedule(name, "pause", as_json)


def resume(name: Name, as_json: AsJson = False) -> None:
    """Continue a paused schedule from now. Slots that came meanwhile are skipped."""
    _change_schedule(name, "resume", as_json)


def _change_schedule(name: str, how: ScheduleChange, as_json: bool) -> None:
    row = run_with_client(lambda client: client.change_schedule(name, how))
    sentence = f"schedule {name} is {_schedule_status(row)}"
    if not row["paused"]:
        sentence += f"; next at {row['next_at']}"
    say_row(row, sentence, as_json=as_json)


def delete(name: Name, as_json: AsJson = False) -> None:
    """Delete a schedule. Executions that it started continue."""
    row = run_with_client(lambda client: client.delete_schedule(name))
    say_row(row, f"schedule {name} is deleted", as_json=as_json)


def next_slots(
    name: Name,
    count: Annotated[
        int,
        typer.Option(
            "--count",
            "-n",
            min=1,
            max=100,
            help="how many",
        ),
    ] = 5,
    as_json: AsJson = False,
) -> None:
    """Print the next slots of a schedule, in its own time zone.

    Example: noetl schedule next nightly -n 10
    """

    async def work(client: RowClient) -> Row:
        return await client.list_next_slots(name, count)

    row = run_with_client(work)
    if as_json:
        say_json(row)
    else:
        for slot in row["slots"]:
            say(slot)


def _schedule_status(row: Row) -> str:
    return "paused" if row["paused"] else "active"


def _describe_rule(row: Row) -> str:
    if row["every"]:
        return f"every {row['every']}"
    return f"{row['cron']} ({row['timezone']})"
