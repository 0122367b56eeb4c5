"""The command that shows the items of a loop."""

import json
from typing import Annotated, Any

import typer

from noetl.cli.client import find_execution_id, run_with_client
from noetl.cli.options import ID, AsJson, Step
from noetl.cli.output import print_table, say, say_json
from noetl.client.rows import Row, RowClient
from noetl.model.errors import InvalidInput

MAX_SHOWN_CHARS = 60
ITEMS_PER_PAGE = 200
STATUSES = ("failed", "ok", "skipped", "all")

OnlyFailed = Annotated[
    bool, typer.Option("--failed", help="the failed ones, which is what you get by default")
]
Status = Annotated[
    str | None, typer.Option("--status", help="failed, ok, skipped or all; default: failed")
]
Kind = Annotated[
    int | None,
    typer.Option(
        "--kind",
        metavar="N",
        min=1,
        max=8,
        help="only failures of this kind: its number in the list",
    ),
]
Run = Annotated[
    int | None, typer.Option("--run", min=1, help="which run of the step; default: the last")
]
Search = Annotated[
    str | None, typer.Option("--search", metavar="TEXT", help="only items with this text")
]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, max=10_000, help="how many")]


def items(
    execution: ID,
    step: Step,
    failed: OnlyFailed = False,
    status: Status = None,
    kind: Kind = None,
    run: Run = None,
    search: Search = None,
    limit: Limit = 20,
    as_json: AsJson = False,
) -> None:
    """Show the items of a loop that failed, and the kinds of their failures.

    Items are read from the parts of the result that have failures; the others stay closed.

    \b
    Examples:
      noetl exec items @latest score --failed
      noetl exec items @latest score --kind 1      only the first kind
      noetl exec items @latest score --status all --limit 100 --json
    """
    wanted = _choose_status(status, failed)
    number = None if kind is None else kind - 1

    async def work(client: RowClient) -> Row:
        execution_id = await find_execution_id(client, execution)
        page: Row = {}
        found: list[Row] = []
        after: str | None = None
        while True:
            page = await client.list_items(
                execution_id,
                step,
                run=run,
                status=wanted,
                kind=number,
                q=search,
                after=after,
                limit=min(limit - len(found), ITEMS_PER_PAGE),
            )
            found += page["items"]
            after = page["next"]
            if after is None or len(found) >= limit:
                return {**page, "items": found}

    page = run_with_client(work)
    if as_json:
        say_json(page)
    else:
        _print_items(page)


def _choose_status(status: str | None, failed: bool) -> str:
    if status is None:
        return "failed"
    if failed and status != "failed":
        raise InvalidInput(
            f"--failed and --status {status} exclude each other", hint="give one of them"
        )
    if status not in STATUSES:
        raise InvalidInput(f"no item is ever {status!r}", hint=f"one of {', '.join(STATUSES)}")
    return status


def _print_items(page: Row) -> None:
    total = "?" if page["total"] is None else page["total"]
    counts = f"{page['ok']} ok, {page['failed']} failed, {page['skipped']} skipped"
    say(f"{page['step']}, run {page['run']}: {total} items, {counts}")
    for number, kind in enumerate(page["kinds"], 1):
        first = "" if kind["first"] is None else f", first item {kind['first']}"
        say(f"  kind {number}: {kind['count']} × {kind['code']}: {kind['shape']}{first}")
    if not page["items"]:
        say("no items like that")
        return
    say()
    print_table(
        ("ITEM", "STATUS", "MS", "TRIES", "VALUE", "RESULT OR ERROR"),
        [_make_item_row(item) for item in page["items"]],
    )
    if page["next"] is not None:
        say("there are more: --limit shows them")


def _make_item_row(item: Row) -> tuple[Any, ...]:
    error = item["error"]
    outcome = _shorten(item["value"]) if error is None else f"{error['code']}: {error['message']}"
    status = "failed" if item["status"] == "error" else item["status"]
    return item["index"], status, item["ms"], item["tries"], _shorten(item["item"]), outcome


def _shorten(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    if len(text) <= MAX_SHOWN_CHARS:
        return text
    return text[: MAX_SHOWN_CHARS - 1] + "…"
