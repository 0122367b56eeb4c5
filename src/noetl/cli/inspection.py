"""`noetl exec explain` and `noetl exec at`: why a step ran, and how an execution was at an event."""

import json
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from noetl.cli.client import find_execution_id, run_with_client
from noetl.cli.details import format_loop_progress, format_seconds
from noetl.cli.options import ID, AsJson, Step
from noetl.cli.output import (
    adapt_commands,
    add_colour,
    dim_text,
    format_status,
    print_table,
    say,
    say_json,
    shorten_text,
)
from noetl.cli.results import show_sample
from noetl.client.rows import Row, RowClient
from noetl.model.errors import SAMPLE_KEY, Expired, NotFound, Unavailable
from noetl.model.ids import ExecutionId

MAX_SAMPLE_ROWS = 20
MAX_VALUE_CHARS = 200
MAX_LISTED_KINDS = 8
MAX_EVENT_NUMBER = 1_000_000_000
AtEvent = Annotated[
    int | None,
    typer.Option("--at", metavar="N", min=1, max=MAX_EVENT_NUMBER, help="as of its Nth event"),
]
OfRun = Annotated[
    int | None,
    typer.Option(
        "--run", min=1, max=MAX_EVENT_NUMBER, help="as of the end of this run of the step"
    ),
]
EventNumber = Annotated[
    int,
    typer.Argument(
        metavar="N",
        min=1,
        max=MAX_EVENT_NUMBER,
        help="the number of an event: the first column of `noetl exec events ID`, and on the page",
    ),
]


def explain(
    execution: ID, step: Step, at: AtEvent = None, run: OfRun = None, as_json: AsJson = False
) -> None:
    """Say why a step ran, did not run, or waits, with the values that decided it.

    Example: noetl exec explain @latest shout
    """

    async def work(client: RowClient) -> Row:
        execution_id = await find_execution_id(client, execution)
        seq = None if at is None else await client.find_event(execution_id, at)
        row = await client.explain_step(execution_id, step, seq, run)
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
    for reason, cause, number in zip(row["because"], row["causes"], row["numbers"], strict=True):
        line = f"  {adapt_commands(reason)}"
        facts = ", ".join(_list_cause_facts(cause, number))
        if facts:
            line += f"  {dim_text(facts)}"
        say(line)
        for kind in cause.get("kinds", ())[:MAX_LISTED_KINDS]:
            say(f"    {kind['count']} × {kind['code']}: {shorten_text(kind['shape'], 100)}")
    if row.get("sample") is not None:
        show_sample(row["sample"])


def _list_cause_facts(cause: Row, number: int | None) -> Iterator[str]:
    """What a cause says beside its sentence: where the playbook asks for it, and its event."""
    if cause["kind"] == "arc" and cause.get("when") is not None and cause.get("from") is None:
        yield f"when {cause['when']}"
    if cause.get("line") is not None:
        yield f"line {cause['line']}"
    if number is not None:
        yield f"event {number}"
    if cause.get("args"):
        yield f"args {_format_value(cause['args'])}"
    if cause["kind"] == "waits" and cause.get("since") is not None:
        yield f"since {cause['since']}"


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


def show_at(execution: ID, number: EventNumber, as_json: AsJson = False) -> None:
    """Show how an execution was after one of its events.

    Example: noetl exec at @latest 71
    """

    async def work(client: RowClient) -> Row:
        execution_id = await find_execution_id(client, execution)
        return await client.get_page(execution_id, await client.find_event(execution_id, number))

    page = run_with_client(work)
    if as_json:
        say_json(page)
        return
    print_page(page)


def print_page(page: Row) -> None:
    say(f"execution  {page['execution_id']}  {page['path']}")
    say(f"event      {page['number']} of {page['events']}, {page['at']}")
    say(f"status     {format_status(page['status'], page['recovered'])}")
    if page["ctx"]:
        say(f"ctx        {_format_value(page['ctx'])}")
    if page["steps"]:
        say()
        rows = [_make_step_row(name, step) for name, step in page["steps"].items()]
        print_table(("STEP", "STATUS", "RUNS", "TIME", "ITEMS", "WAITS FOR"), rows)
    if page["live"]:
        say(f"\n{page['live_total']} commands have not ended")
    for kind in page["failures"]["kinds"][:MAX_LISTED_KINDS]:
        shape = shorten_text(kind["shape"], 100)
        say(f"{kind['count']} × {kind['code']} at {kind['step']}: {shape}")
    for note in page["left_out"]:
        say(dim_text(f"left out: {note}"))


def _format_value(value: Any) -> str:
    return shorten_text(json.dumps(value, ensure_ascii=False, default=str), MAX_VALUE_CHARS)


def _make_step_row(name: str, step: Row) -> tuple[Any, ...]:
    waits = step["waits"] or {}
    waits_for = " ".join(filter(None, (waits.get("on"), waits.get("name"), waits.get("child"))))
    return (
        name,
        step["status"],
        step["runs"],
        format_seconds(step["seconds"]),
        format_loop_progress(step["loop"]),
        waits_for,
    )
