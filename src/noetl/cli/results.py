"""`noetl result`: the data that steps produced. `noetl trace`: where that data comes from."""

import json
import os
import re
import sys
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import typer

from noetl.cli.client import check_page_start, find_execution_id, run_with_client
from noetl.cli.options import ID, AsJson, Step
from noetl.cli.output import dim_text, print_table, say, say_json, say_row
from noetl.client.rows import PinChange, Row, RowClient, RowSpan
from noetl.model.errors import InvalidInput, NoetlError

MAX_VALUE_CHARS = 4_000  # characters of a value that are shown
SHOWN_ROWS = 20  # rows of a result that are shown
BYTE_UNITS = ("kB", "MB", "GB", "TB")
FORMATS = ("parquet", "csv", "json", "jsonl")
FORMAT_ENDINGS = ", ".join(f".{format}" for format in FORMATS)
_ROW_RANGE = re.compile(r"([0-9]{0,18}):([0-9]{0,18})", re.ASCII)

Into = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help="a file; without one, or with -, stdout",
        callback=lambda given: None if given == Path("-") else given,
    ),
]
Rows = Annotated[
    str | None,
    typer.Option("--rows", metavar="A:B", help="rows from A on, up to B; counted from 0"),
]


def register(app: typer.Typer) -> None:
    group = typer.Typer(name="result", help=ABOUT, no_args_is_help=True, rich_markup_mode=None)
    for command in (show, get, export, pin, unpin, usage):
        group.command()(command)
    app.add_typer(group)
    app.command()(trace)


ABOUT = """Show and save the data that steps have made.

\b
  noetl result show @latest fetch                   its first rows, or its value
  noetl result get @latest fetch -o fetch.parquet   all of it
  noetl result export @latest fetch --format csv --rows 0:100
  noetl result pin @latest fetch                    keep it, whatever its lifetime
  noetl result usage                                what executions take
"""


# ---- the data ----------------------------------------------------------------------------------------------------------


def show(
    execution: ID,
    step: Step,
    as_json: Annotated[bool, typer.Option("--json", help="print the value as JSON, whole")] = False,
) -> None:
    """Show the result of a step: its first rows, or its value.

    Exit code: 0 it has one, 1 the step failed (what it left is shown), 2 there is none.

    \b
    Examples:
      noetl result show @latest shout
      noetl result show @latest fetch --json | jq '.[0]'
    """

    async def work(client: RowClient) -> None:
        execution_id = await find_execution_id(client, execution)
        result = await client.preview_result(execution_id, step, SHOWN_ROWS)
        error, sample = result["error"], result["preview"]
        if result["reference"] is not None or error is None:
            if as_json:
                await _write_parts(
                    client.download_result(execution_id, step, "json"), sys.stdout.buffer
                )
                say()
            else:
                _show_result(result)
        elif sample is not None:
            if as_json:
                say_json(sample["rows"])
            else:
                show_sample(sample)
        if error is not None:
            raise NoetlError(
                f"step {step} failed: {error['code']}: {error['message']}",
                hint=f"noetl exec explain {execution_id} {step}",
            )

    run_with_client(work)


def _show_result(result: Row) -> None:
    preview = result["preview"] or {
        "rows": None,
        "value": None,
        "cut": False,
    }
    rows = preview["rows"]
    if rows is None:
        _show_value(result, preview)
        return
    names = [column["name"] for column in preview["columns"]]
    if names and all(isinstance(row, dict) for row in rows):
        _print_rows(names, rows)
    else:
        say(_to_pretty_json(rows))
    summary = _describe_size(result["reference"])
    if result["pinned"]:
        summary += ", pinned"
    if preview["cut"]:
        summary += f"; these are the first {len(rows)}"
    say(dim_text(summary))


def show_sample(preview: Row) -> None:
    """Print rows that show why a step failed."""
    rows = preview["rows"] or []
    names: dict[str, None] = {}  # an ordered set
    for row in rows:
        names.update(dict.fromkeys(row))
    say(f"rows that failed, {len(rows)} of them:")
    _print_rows(list(names), rows)


def _print_rows(names: list[str], rows: list[Row]) -> None:
    print_table(names, [[to_table_cell(row.get(name)) for name in names] for row in rows])


def _show_value(result: Row, preview: Row) -> None:
    if preview["cut"]:
        say(f"{_describe_size(result['reference'])}: --json prints it, noetl result get saves it")
        return
    value = preview["value"]
    text = value if isinstance(value, str) else _to_pretty_json(value)
    if len(text) <= MAX_VALUE_CHARS:
        say(text)
    else:
        say(f"{text[:MAX_VALUE_CHARS]}…\n({len(text)} characters; --json prints all of it)")
    if result["pinned"]:
        say(dim_text("pinned"))


def to_table_cell(value: Any) -> Any:
    """A value for a cell of a table: nested values and booleans become JSON."""
    if isinstance(value, dict | list | bool):
        return _to_pretty_json(value, indent=None)
    return value


def get(execution: ID, step: Step, into: Into = None) -> None:
    """Save the result of a step: in the format that the name of the file says, else as it is stored.

    Row sets are stored as Arrow when they are small and as Parquet when they are large, anything else as JSON.

    Example: noetl result get @latest fetch -o fetch.parquet
    """
    _save_result(execution, step, _find_format(into), (0, None), into)


def export(
    execution: ID,
    step: Step,
    format: Annotated[
        str | None,
        typer.Option(
            "--format",
            "-f",
            help="parquet, csv, json or jsonl; without one, by the name of the file",
        ),
    ] = None,
    into: Into = None,
    rows: Rows = None,
) -> None:
    """Save the result of a step, or some of its rows, in a format of your choice.

    \b
    Examples:
      noetl result export @latest fetch -o fetch.csv
      noetl result export @latest fetch --format jsonl --rows 1000:2000 | jq .id
    """
    chosen = format or _find_format(into)
    if chosen is None and into is not None and into.suffix:
        raise InvalidInput(
            f"{into.name} does not say its format",
            hint=f"a name that ends so: {FORMAT_ENDINGS}; or --format {FORMATS[0]}",
        )
    chosen = chosen or "json"
    if chosen not in FORMATS:
        raise InvalidInput(f"there is no format {chosen!r}", hint=f"one of {', '.join(FORMATS)}")
    if chosen == "parquet" and into is None and sys.stdout.isatty():
        raise InvalidInput("Parquet is nothing for a terminal", hint="-o FILE")
    _save_result(execution, step, chosen, parse_row_range(rows), into)


def _find_format(into: Path | None) -> str | None:
    """The format that the suffix of the file names, or None."""
    if into is None:
        return None
    suffix = into.suffix.lstrip(".").lower()
    return suffix if suffix in FORMATS else None


def parse_row_range(rows: str | None) -> RowSpan:
    """The first row and the row after the last, from `A:B`."""
    match = _ROW_RANGE.fullmatch(rows or ":")
    if match is None:
        raise InvalidInput(
            f"--rows {rows!r}: not a range of rows",
            hint="100:200, :50 for the first, 1000: for the rest",
        )
    first, stop = match.groups()
    return int(first or 0), int(stop) if stop else None


def _save_result(
    execution: str,
    step: str,
    format: str | None,
    rows: RowSpan,
    into: Path | None,
) -> None:
    async def work(client: RowClient) -> int:
        execution_id = await find_execution_id(client, execution)
        parts = client.download_result(execution_id, step, format, rows)
        if into is None:
            return await _write_parts(parts, sys.stdout.buffer)
        return await write_file(parts, into)

    size = run_with_client(work)
    if into is not None:
        say(f"{into}: {_format_bytes(size)}")


async def write_file(parts: AsyncGenerator[bytes, None], into: Path) -> int:
    """Write a file completely or not at all. Returns its size in bytes."""
    part = into.with_name(f".{into.name}.{os.getpid()}")
    try:
        with part.open("xb") as file:  # blocking is fine: this process does nothing else
            size = await _write_parts(parts, file)
        part.replace(into)
    except OSError as error:
        raise InvalidInput(
            f"cannot write {into}: {error.strerror}", hint="-o FILE in a folder that is there"
        ) from error
    finally:
        with suppress(OSError):
            part.unlink()
    return size


async def _write_parts(parts: AsyncGenerator[bytes, None], to: BinaryIO) -> int:
    size = 0
    async with aclosing(parts):
        async for part in parts:
            to.write(part)
            size += len(part)
    to.flush()
    return size


# ---- how long it stays -------------------------------------------------------------------------------------------------


def pin(execution: ID, step: Step, as_json: AsJson = False) -> None:
    """Keep the result of a step, whatever its lifetime.

    Example: noetl result pin @latest report
    """
    _change_pin_and_report(execution, step, "pin", f"the result of {step} stays", as_json)


def unpin(execution: ID, step: Step, as_json: AsJson = False) -> None:
    """Let the lifetime of a result count again.

    Example: noetl result unpin @latest report
    """
    _change_pin_and_report(
        execution,
        step,
        "unpin",
        f"the result of {step} stays as long as its lifetime says",
        as_json,
    )


def _change_pin_and_report(
    execution: str,
    step: str,
    how: PinChange,
    done: str,
    as_json: bool,
) -> None:
    async def work(client: RowClient) -> Row:
        return await client.change_pin(await find_execution_id(client, execution), step, how)

    row = run_with_client(work)
    say_row(row, done, as_json=as_json)


def usage(
    execution: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="an execution; without one, the newest")
    ] = None,
    path: Annotated[
        str | None, typer.Option("--playbook", metavar="PATH", help="executions of this playbook")
    ] = None,
    limit: Annotated[
        int,
        typer.Option(
            "--limit",
            "-n",
            min=1,
            max=200,
            help="how many executions at most",
        ),
    ] = 50,
    before: Annotated[
        str | None, typer.Option("--before", metavar="ID", help="executions older than this one")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show what results take: payloads and bytes, by execution, playbook and tier.

    \b
    Examples:
      noetl result usage
      noetl result usage @latest --json | jq .tiers
    """

    async def work(client: RowClient) -> Row:
        if execution is None:
            check_page_start(before)
            return await client.list_usage(path, before, limit)
        usage = await client.get_execution_usage(await find_execution_id(client, execution))
        return {"executions": [usage], "next": None}

    page = run_with_client(work)
    rows: list[Row] = page["executions"]
    totals = sum_by_playbook(rows)
    if as_json and execution is None:
        say_json({**page, "playbooks": totals})
        return
    if as_json:
        say_json(rows[0])
        return
    print_table(
        ["EXECUTION", *_USAGE_HEADER],
        [[row["execution_id"], *_make_usage_row(row), ", ".join(row["pinned"])] for row in rows],
    )
    if execution is None and rows:
        say()
        print_table(
            ["PLAYBOOK", *_USAGE_HEADER[1:-1]],
            [[total["path"], *_make_usage_row(total)[1:]] for total in totals],
        )
    if page["next"] is not None:
        say(dim_text(f"(the newest {len(rows)}; --before {page['next']} shows older ones)"))


def sum_by_playbook(rows: list[Row]) -> list[Row]:
    """The usage of each playbook: the sum over its executions in `rows`. The largest is first."""
    totals: dict[str, Row] = {}
    for row in rows:
        path = row["path"]
        empty = {
            "executions": 0,
            "tiers": {},
            "count": 0,
            "bytes": 0,
            "expired": 0,
        }
        total = totals.setdefault(path, {"path": path, **empty})
        total["executions"] += 1
        for name in ("count", "bytes", "expired"):
            total[name] += row[name]
        for tier, used in row["tiers"].items():
            known = total["tiers"].setdefault(tier, {"count": 0, "bytes": 0})
            total["tiers"][tier] = {name: known[name] + used[name] for name in known}
    return sorted(totals.values(), key=lambda total: (-total["bytes"], total["path"]))


_USAGE_HEADER = ("PLAYBOOK", "PAYLOADS", "BYTES", "TIERS", "EXPIRED", "PINNED")


def _make_usage_row(row: Row) -> list[Any]:
    tiers = {tier: used["bytes"] for tier, used in row["tiers"].items() if used["count"]}
    by_tier = ", ".join(f"{tier} {_format_bytes(size)}" for tier, size in tiers.items())
    return [row["path"], row["count"], _format_bytes(row["bytes"]), by_tier, row["expired"]]


# ---- what it was made from ---------------------------------------------------------------------------------------------


def trace(
    execution: ID,
    step: Step,
    depth: Annotated[
        int,
        typer.Option(
            "--depth",
            metavar="N",
            min=0,
            max=64,
            help="how many steps back",
        ),
    ] = 16,
    as_json: AsJson = False,
) -> None:
    """Show what the result of a step was made from, step by step, across executions.

    Example: noetl trace @latest report --depth 3
    """

    async def work(client: RowClient) -> Row:
        return await client.trace_result(await find_execution_id(client, execution), step, depth)

    graph = run_with_client(work)
    if as_json:
        say_json(graph)
        return
    for line in draw_lineage(graph):
        say(line)
    if graph["next"] is not None:
        say(dim_text(f"(the nearest {len(graph['nodes'])}; --depth shows fewer steps back)"))


LAST_BRANCH = ("└─ ", "   ")  # the corner of a branch, and the indent of the lines below it
BRANCH = ("├─ ", "│  ")


def draw_lineage(graph: Row) -> Iterator[str]:
    """The lines of a lineage graph. A reference that was shown before appears by name only."""
    nodes = {node["ref_id"]: node for node in graph["nodes"]}
    sources = _group_sources_by_target(graph["edges"])
    shown: set[str] = set()

    def describe_branch(ref_id: str) -> str:
        node = nodes.get(ref_id)
        if node is None:
            return "…"
        return _describe_node(node, graph["execution_id"], again=ref_id in shown)

    def draw_level(references: list[tuple[str, str]], indent: str) -> Iterator[str]:
        for number, (kind, ref_id) in enumerate(references, 1):
            corner, below = LAST_BRANCH if number == len(references) else BRANCH
            label = f"{kind} {describe_branch(ref_id)}".lstrip()
            yield f"{indent}{corner}{label}"
            if ref_id in nodes and ref_id not in shown:
                shown.add(ref_id)
                yield from draw_level(sources.get(ref_id, []), indent + below)

    yield f"{graph['step']}  {graph['status']}"
    yield from draw_level([("", ref_id) for ref_id in graph["roots"]], "")


def _group_sources_by_target(edges: list[Row]) -> dict[str, list[tuple[str, str]]]:
    """Kind and source of the edges of each target. A source counts once.

    The task before a result is often read for it as well, so two edges may join the same nodes.
    """
    sources: dict[str, list[tuple[str, str]]] = {}
    for edge in edges:
        references = sources.setdefault(edge["target"], [])
        if all(ref_id != edge["source"] for _, ref_id in references):
            references.append((edge["kind"], edge["source"]))
    return sources


def _describe_node(node: Row, execution_id: str, *, again: bool) -> str:
    name = str(node["step"])
    if node["execution_id"] != execution_id:
        name = f"{node['execution_id']}/{name}"
    if node["task"]:
        name += f".{node['task']}"
    if again:
        return f"{name}  (above)"
    kind = (node["tool"] or {}).get("kind") or node["kind"]
    text = f"{name}  {kind}  {_describe_size(node)}  {_format_moment(node['at'])}"
    if node["expired_at"]:
        text += f"  expired {_format_moment(node['expired_at'])}"
    provenance = "".join(f" {key}={value}" for key, value in node["provenance"].items())
    return text + provenance


def _format_moment(text: str) -> str:
    return text[:19].replace("T", " ")


# ---- words -------------------------------------------------------------------------------------------------------------


def _describe_size(reference: Row | None) -> str:
    if reference is None:
        return "nothing"
    size = f"{_format_bytes(reference['bytes'])} {reference['format'] or ''}".rstrip()
    if reference["rows"] is None:
        return size
    return f"{reference['rows']} rows, {size}"


def _format_bytes(size: int | None) -> str:
    if size is None:
        return "in parts"
    if size < 1_000:
        return f"{size} B"
    power = min((len(str(size)) - 1) // 3, len(BYTE_UNITS))
    return f"{size / 1000**power:.1f} {BYTE_UNITS[power - 1]}"


def _to_pretty_json(value: Any, indent: int | None = 2) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)
