"""`noetl exec retry` and `rerun`: repeat executions that have ended. Both print their plan first."""

from typing import Annotated, Any

import typer

from noetl.cli.client import find_execution_id, run_with_client
from noetl.cli.following import catch_interrupts, finish_command, follow_execution, make_display
from noetl.cli.output import (
    adapt_commands,
    format_count,
    print_table,
    say,
    say_json,
    say_row,
    warn,
)
from noetl.cli.payloads import merge_assignments
from noetl.cli.questions import check_answerable, confirm_or_exit
from noetl.cli.story import Story
from noetl.client.rows import RepeatKind, Row, RowClient
from noetl.model.errors import Conflict, InvalidInput
from noetl.model.ids import ExecutionId

RETRY_PAGE_EXECUTIONS = 500
MAX_REPEATED = 10_000  # executions that one command repeats

AsJson = Annotated[bool, typer.Option("--json", help="print JSON")]
Watch = Annotated[bool, typer.Option("--watch", "-w", help="follow it and print every event")]
OfVersion = Annotated[
    str | None,
    typer.Option(
        "--version", metavar="N", help="of the playbook: a number, or latest; without it, the same"
    ),
]
Assignments = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="change a value of the workload; YAML"),
]
DryRun = Annotated[
    bool,
    typer.Option("--dry-run", "--preview", help="say what would be done, and do nothing"),
]
Yes = Annotated[
    bool,
    typer.Option(
        "--yes", "-y", help="with --failed: do not ask; needed with --json and without a terminal"
    ),
]
OptionalId = Annotated[
    str | None, typer.Argument(metavar="[ID]", help="an execution's id, or @latest")
]


ChosenStep = Annotated[
    str | None,
    typer.Option("--step", metavar="S", help="of a completed execution: only this loop"),
]
ChosenItems = Annotated[
    str | None,
    typer.Option(
        "--item", metavar="I,J", help="with --step: only these failed items, counted from 0"
    ),
]


def retry(
    execution: OptionalId = None,
    failed: Annotated[
        bool, typer.Option("--failed", help="every failed execution that was not retried yet")
    ] = False,
    since: Annotated[
        str | None, typer.Option("--since", metavar="T", help="with --failed: started since, 1d")
    ] = None,
    path: Annotated[
        str | None, typer.Option("--path", help="with --failed: of this playbook, or like 'etl/*'")
    ] = None,
    step: ChosenStep = None,
    items: ChosenItems = None,
    version: OfVersion = None,
    assigned: Assignments = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    watch: Watch = False,
    as_json: AsJson = False,
) -> None:
    """Run again what did not finish: a new execution that takes over the results of the finished steps.

    Of a loop only the failed items run again, also when it completed with them (`best_effort`); the steps after it follow.
    `--item` limits it to some of them: the others stay failed, and the failure policy of the loop decides what that means.

    On this machine it runs here, to its end, as `noetl run` does; with NOETL_SERVER_URL its workers run it.

    \b
    Examples:
      noetl exec retry @latest
      noetl exec retry @latest --version latest --dry-run
      noetl exec retry @latest --step score --item 3,17
      noetl exec retry --failed --since 1d --path 'etl/*'
    """
    if failed == (execution is not None):
        raise InvalidInput("which execution?", hint="give an id, @latest, or --failed for many")
    if not failed and (since or path):
        raise InvalidInput(
            "--since and --path choose among many", hint="give them with --failed, without an id"
        )
    if failed and step is not None:
        raise InvalidInput("--step is of one execution", hint="give its id instead of --failed")
    wish = _make_wish(version, assigned) | _make_choice(step, items)
    if failed:
        filters = {"since": since, "path": path}
        _retry_many(filters, wish, dry_run, yes, as_json)
    else:
        _repeat_one(execution or "", "retry", wish, dry_run, watch, as_json)


def rerun(
    execution: Annotated[str, typer.Argument(metavar="ID", help="an execution's id, or @latest")],
    from_step: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="STEP",
            help="take over what ran before this step, and continue from it",
        ),
    ] = None,
    version: OfVersion = None,
    assigned: Assignments = None,
    dry_run: DryRun = False,
    watch: Watch = False,
    as_json: AsJson = False,
) -> None:
    """Run the same playbook with the same workload again, from the beginning or from a step.

    With --from the step and what follows from it run again, with the variables, results and arguments that were there when the
    step was last entered.

    \b
    Examples:
      noetl exec rerun @latest
      noetl exec rerun @latest --set limit=20
      noetl exec rerun @latest --from load --dry-run
    """
    wish = _make_wish(version, assigned)
    if from_step is not None:
        wish["from_step"] = from_step
    _repeat_one(execution, "rerun", wish, dry_run, watch, as_json)


def _make_wish(version: str | None, assigned: list[str] | None) -> Row:
    wish: Row = {"payload": merge_assignments({}, assigned or [])}
    if version == "latest":
        wish["version"] = version
    elif version is not None:
        if not version.isdecimal():
            raise InvalidInput(f"--version {version!r}: no version", hint="a number, or latest")
        wish["version"] = int(version)
    return wish


def _make_choice(step: str | None, items: str | None) -> Row:
    """The part of a retry wish that `--step` and `--item` give."""
    if items is None:
        return {} if step is None else {"steps": [step]}
    if step is None:
        raise InvalidInput("--item: of which loop?", hint="name it with --step")
    parts = [part.strip() for part in items.split(",")]
    wrong = [part for part in parts if not (part.isascii() and part.isdecimal())]
    if wrong:
        raise InvalidInput(
            f"--item {wrong[0]!r} is no index of an item",
            hint=f"numbers with commas between them, as in noetl exec items ID {step} --failed",
        )
    return {"items": {step: [int(part) for part in parts]}}


def _repeat_one(
    execution: str,
    how: RepeatKind,
    wish: Row,
    dry_run: bool,
    watch: bool,
    as_json: bool,
) -> None:
    async def work(client: RowClient) -> Row | str | Story:
        execution_id = await find_execution_id(client, execution)
        try:
            plan = await client.preview_repeat(execution_id, how, **wish)
            if dry_run:
                return plan
            if not as_json:
                _print_repeat_plan(plan)
            new_id = await client.repeat_execution(execution_id, how, **wish)
        except Conflict as error:
            hint = await _find_repeat_hint(client, execution_id, how, error)
            raise Conflict(str(error), hint=hint) from error
        if client.has_server and not watch:
            return new_id
        async with catch_interrupts() as stop:
            return await follow_execution(client, new_id, make_display(as_json, watch), stop)

    outcome = run_with_client(work, "read" if dry_run else "run")
    if isinstance(outcome, dict):  # the plan
        if as_json:
            say_json(outcome)
        else:
            _print_repeat_plan(outcome)
        return
    if not isinstance(outcome, str):  # the story of an execution that was followed
        finish_command(outcome, as_json)
    sentence = adapt_commands(f"started execution {outcome}: noetl exec get {outcome}")
    say_row({"execution_id": outcome}, sentence, as_json=as_json)


async def _find_repeat_hint(
    client: RowClient, execution_id: ExecutionId, how: RepeatKind, error: Conflict
) -> str | None:
    """A hint for an execution that cannot be repeated.

    It has not ended, maybe because no process runs it any more, or nothing is left to retry.
    """
    row = await client.get_execution(execution_id)
    if row["status"] == "completed" and "nothing is left" in str(error):
        return f"noetl exec rerun {execution_id} runs it from the beginning"
    if row["ended_at"] is not None:
        return error.hint
    goes_on = "noetl worker start" if client.has_server else "noetl server start, or any noetl run,"
    return f"noetl exec cancel {execution_id}, then {how}; if it was left behind, {goes_on} goes on with it"


def _print_repeat_plan(plan: Row) -> None:
    """Print the version, the inherited steps, the steps that run, and the changes."""
    version = f"version {plan['version']}"
    if plan["version"] != plan["version_before"]:
        version += f" instead of {plan['version_before']}"
    say(f"{plan['how']} of execution {plan['execution_id']}: {plan['path']}, {version}")
    if plan["inherited"]:
        say(f"  takes over    {', '.join(plan['inherited'])}")
    say(f"  begins with   {_format_first_steps(plan)}")
    for step, loop in plan["items"].items():
        if loop["left"]:
            say(f"  leaves out    {_describe_left_items(step, loop)}")
    entered = plan["entered"]
    if entered is not None:
        run = "its only run" if entered["run"] == 1 else f"its last run, number {entered['run']}"
        say(f"  as of         {entered['at']}, when {plan['begins'][0]} was entered for {run}")
    following = [step for step in plan["again"] if step not in plan["begins"]]
    if following:
        say(f"  may follow    {', '.join(following)}")
    for way in plan.get("ways", []):
        if way["one"] and len(way["maybe"]) > 1:
            say(f"  only one of   {', '.join(way['maybe'])} (after {way['step']})")
    for step, names in plan.get("writes_again", {}).items():
        say(
            f"  writes again  {', '.join(names)} (step {step}, onto the values that the earlier execution left)"
        )
    for step in plan.get("changed_loops", []):
        say(
            f"  loop changed  {step}: this version has another loop.in; items that do not run again keep their results"
        )
    for name, change in plan["workload_changes"].items():
        say(f"  workload      {_describe_change(name, change['before'], change['after'])}")


def _describe_change(name: str, before: Any, after: Any) -> str:
    if before is None:
        return f"{name} is set to {after!r}"
    return f"{name}: {before!r} becomes {after!r}"


def _format_first_steps(plan: Row) -> str:
    """The first steps of a plan. A loop is shown with the number of its items that run again."""
    names: list[str] = []
    for step in plan["begins"]:
        loop = plan["items"].get(step)
        if loop is None:
            names.append(step)
        else:
            names.append(f"{step} ({loop['again']} of {loop['total']} items)")
    return ", ".join(names)


def _describe_left_items(step: str, loop: Row) -> str:
    others = "1 other failed item" if loop["left"] == 1 else f"{loop['left']} other failed items"
    text = f"{others} of {step} will not run"
    if loop["fails_again"]:
        text += ", so the loop fails even if the chosen ones succeed"
    return text


# ---- many ----------------------------------------------------------------------------------------------------------------


def _retry_many(
    filters: Row,
    wish: Row,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    if not dry_run:
        check_answerable(yes, as_json, "a retry of many executions")
    starts_at_once = yes and not dry_run

    async def work(client: RowClient) -> list[Row]:
        planned = await _plan_retries(client, filters, wish)
        return await _start_retries(client, planned, wish) if starts_at_once else planned

    rows: list[Row] = run_with_client(work, "run" if starts_at_once else "read")
    possible = sum(row["refused"] is None for row in rows)
    if possible and not yes and not dry_run:
        planned = rows
        _print_retries(planned)
        confirm_or_exit(f"retry {format_count(possible, 'execution')}?")
        rows = run_with_client(lambda client: _start_retries(client, planned, wish), "run")
    if as_json:
        say_json(rows)
    elif not rows:
        say("no failed executions like that, or all of them were retried")
    else:
        _print_retries(rows)
    bad = any(row["refused"] or row["status"] not in (None, "completed") for row in rows)
    raise typer.Exit(int(bad))


async def _plan_retries(client: RowClient, filters: Row, wish: Row) -> list[Row]:
    chosen, complete = await _list_executions_to_retry(client, filters)
    if not complete:
        warn(
            f"only the {MAX_REPEATED} newest executions were looked at, and there are more",
            "repeat it for older ones with --path, or with the id of each",
        )
    return [await _plan_retry(client, row, wish) for row in chosen]


async def _start_retries(client: RowClient, rows: list[Row], wish: Row) -> list[Row]:
    return [row | await _start_retry(client, row, wish) for row in rows]


async def _list_executions_to_retry(client: RowClient, filters: Row) -> tuple[list[Row], bool]:
    """Failed executions that no later execution retries, oldest first, without children.

    A child is retried with its parent. The second value is False if there are too many executions:
    then the oldest ones were not read.
    """
    rows: list[Row] = []
    before: str | None = None
    complete = False
    while not complete and len(rows) <= MAX_REPEATED:
        page = await client.list_executions(
            roots=True, before=before, limit=RETRY_PAGE_EXECUTIONS, **filters
        )
        rows += page
        complete = len(page) < RETRY_PAGE_EXECUTIONS
        before = page[-1]["execution_id"] if page else None
    complete = complete and len(rows) <= MAX_REPEATED
    rows = rows[:MAX_REPEATED]
    retried = {row["retry_of"] for row in rows}
    failed = [row for row in reversed(rows) if row["status"] == "failed"]
    chosen = [row for row in failed if row["execution_id"] not in retried]
    return chosen, complete


async def _plan_retry(client: RowClient, row: Row, wish: Row) -> Row:
    """The plan of a retry, or why it is refused."""
    execution_id = ExecutionId(row["execution_id"])
    planned: Row = {
        "execution_id": execution_id,
        "path": row["path"],
        "retried_by": None,
        "refused": None,
        "plan": None,
        "status": None,
    }
    try:
        planned["plan"] = await client.preview_repeat(execution_id, "retry", **wish)
    except (Conflict, InvalidInput) as error:
        planned["refused"] = str(error)
    return planned


async def _start_retry(client: RowClient, row: Row, wish: Row) -> Row:
    """Start a retry. On this machine it is followed to its end: no other process would run it."""
    if row["refused"] is not None:
        return {}
    new_id = await client.repeat_execution(ExecutionId(row["execution_id"]), "retry", **wish)
    if client.has_server:
        return {"retried_by": new_id}

    async with catch_interrupts() as stop:
        story = await follow_execution(client, new_id, make_display(True, False), stop)
    return {"retried_by": new_id, "status": story.status}


def _print_retries(rows: list[Row]) -> None:
    lines = []
    for row in rows:
        plan = row["plan"]
        begins, version = "", ""
        if plan is not None:
            begins, version = _format_first_steps(plan), plan["version"]
        outcome = row["refused"] or row["retried_by"]
        line = (row["execution_id"], row["path"], version, begins, outcome, row["status"])
        lines.append(line)
    print_table(("EXECUTION", "PLAYBOOK", "VERSION", "BEGINS WITH", "RETRIED BY", "STATUS"), lines)
