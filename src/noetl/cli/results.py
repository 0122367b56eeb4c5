"""`noetl result`: the data that steps have made; `noetl trace`: what it was made from."""

import os
import re
import sys
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from noetl.cli.client import Client, Row, Span, named
from noetl.cli.executions import ID, AsJson, Step, talk
from noetl.cli.output import columns, dim, say, say_json
from noetl.model.errors import InvalidInput, NoetlError

if TYPE_CHECKING:
    pass

SHOWN = 4_000  # characters of a value shown to a person
ROWS = 20
UNITS = ("kB", "MB", "GB", "TB")
FORMATS = ("parquet", "csv", "json", "jsonl")
_ROWS = re.compile(r"([0-9]{0,18}):([0-9]{0,18})", re.ASCII)

Into = Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="a file; without one, stdout")]
Rows = Annotated[str | None, typer.Option("--rows", metavar="A:B", help="rows from A on, up to B; counted from 0")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(name="result", help=ABOUT, no_args_is_help=True, rich_markup_mode=None)
    for command in (show, get, export):
        group.command()(command)
    app.add_typer(group)
    app.command()(trace)


ABOUT = """The data that steps have made: look at it, save it.

\b
  noetl result show @latest fetch                   its first rows, or its value
  noetl result get @latest fetch -o fetch.parquet   all of it
  noetl result export @latest fetch --format csv --rows 0:100
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

    async def work(client: Client) -> None:
        execution_id = await named(client, execution)
        found = await client.preview(execution_id, step, ROWS)
        if found["reference"] is not None or found["error"] is None:
            if as_json:
                await _write(client.download(execution_id, step, "json"), sys.stdout.buffer)
                say()
            else:
                _show(found)
        if found["error"] is not None:
            error = found["error"]
            raise NoetlError(
                f"step {step} failed: {error['code']}: {error['message']}",
                hint=f"noetl exec explain {execution_id} {step}",
            )

    talk(work)


def _show(found: Row) -> None:
    preview = found["preview"] or {"rows": None, "value": None, "cut": False}
    rows = preview["rows"]
    if rows is None:
        _show_value(found, preview)
        return
    names = [column["name"] for column in preview["columns"]]
    if names and all(isinstance(row, dict) for row in rows):
        columns(names, [[_cell(row.get(name)) for name in names] for row in rows])
    else:
        say(_pretty(rows))
    more = f"; these are the first {len(rows)}" if preview["cut"] else ""
    say(dim(f"{_stored(found['reference'])}{more}"))


def _show_value(found: Row, preview: Row) -> None:
    if preview["cut"]:
        say(f"{_stored(found['reference'])}: --json prints it, noetl result get saves it")
        return
    value = preview["value"]
    text = value if isinstance(value, str) else _pretty(value)
    say(text if len(text) <= SHOWN else f"{text[:SHOWN]}…\n({len(text)} characters; --json prints all of it)")


def _cell(value: Any) -> Any:
    return _pretty(value, indent=None) if isinstance(value, dict | list | bool) else value


def get(execution: ID, step: Step, into: Into = None) -> None:
    """Save the result of a step: in the format that the name of the file says, else as it is stored.

    Row sets are stored as Arrow when they are small and as Parquet when they are large, anything else as JSON.

    Example: noetl result get @latest fetch -o fetch.parquet
    """
    _save(execution, step, _named_so(into), (0, None), into)


def export(
    execution: ID,
    step: Step,
    format: Annotated[
        str | None,
        typer.Option("--format", "-f", help="parquet, csv, json or jsonl; without one, by the name of the file"),
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
    chosen = format or _named_so(into) or "json"
    if chosen not in FORMATS:
        raise InvalidInput(f"there is no format {chosen!r}", hint=f"one of {', '.join(FORMATS)}")
    if chosen == "parquet" and into is None and sys.stdout.isatty():
        raise InvalidInput("Parquet is nothing for a terminal", hint="-o FILE")
    _save(execution, step, chosen, span(rows), into)


def _named_so(into: Path | None) -> str | None:
    suffix = into.suffix.lstrip(".") if into is not None else ""
    return suffix if suffix in FORMATS else None


def span(rows: str | None) -> Span:
    found = _ROWS.fullmatch(rows or ":")
    if found is None:
        raise InvalidInput(
            f"--rows {rows!r}: not a range of rows", hint="100:200, :50 for the first, 1000: for the rest"
        )
    return int(found[1] or 0), int(found[2]) if found[2] else None


def _save(execution: str, step: str, format: str | None, rows: Span, into: Path | None) -> None:
    async def work(client: Client) -> int:
        execution_id = await named(client, execution)
        parts = client.download(execution_id, step, format, rows)
        if into is None:
            return await _write(parts, sys.stdout.buffer)
        return await write_file(parts, into)

    size = talk(work)
    if into is not None:
        say(f"{into}: {_bytes(size)}")


async def write_file(parts: AsyncGenerator[bytes, None], into: Path) -> int:
    """Whole or not at all."""
    part = into.with_name(f".{into.name}.{os.getpid()}")
    try:
        with part.open("xb") as file:  # nothing else goes on in this process
            size = await _write(parts, file)
        part.replace(into)
    except OSError as error:
        raise InvalidInput(
            f"cannot write {into}: {error.strerror}", hint="-o FILE in a folder that is there"
        ) from error
    finally:
        with suppress(OSError):
            part.unlink()
    return size


async def _write(parts: AsyncGenerator[bytes, None], to: BinaryIO) -> int:
    size = 0
    async with aclosing(parts):
        async for part in parts:
            to.write(part)
            size += len(part)
    to.flush()
    return size


# ---- what it was made from ---------------------------------------------------------------------------------------------


def trace(
    execution: ID,
    step: Step,
    depth: Annotated[int, typer.Option("--depth", metavar="N", min=0, max=64, help="how many steps back")] = 16,
    as_json: AsJson = False,
) -> None:
    """Show what the result of a step was made from, and that from what, across executions.

    Example: noetl trace @latest report --depth 3
    """

    async def work(client: Client) -> Row:
        return await client.trace(await named(client, execution), step, depth)

    found = talk(work)
    if as_json:
        say_json(found)
        return
    for line in tree(found):
        say(line)
    if found["next"] is not None:
        say(dim(f"(the nearest {len(found['nodes'])}; --depth shows fewer steps back)"))


def tree(found: Row) -> Iterator[str]:
    """Each reference once; where it is met again, its name alone."""
    nodes = {node["ref_id"]: node for node in found["nodes"]}
    sources: dict[str, list[tuple[str, str]]] = {}
    for edge in found["edges"]:
        known = sources.setdefault(edge["target"], [])
        if all(ref_id != edge["source"] for _, ref_id in known):  # the task before it is most often read, too
            known.append((edge["kind"], edge["source"]))
    told: set[str] = set()

    def branch(kind: str, ref_id: str, before: str, corner: str, below: str) -> Iterator[str]:
        node = nodes.get(ref_id)
        name = "…" if node is None else _described(node, found["execution_id"], again=ref_id in told)
        yield f"{before}{corner}{kind} {name}" if kind else f"{before}{corner}{name}"
        if node is None or ref_id in told:
            return
        told.add(ref_id)
        yield from level(sources.get(ref_id, []), before + below)

    def level(listed: list[tuple[str, str]], before: str) -> Iterator[str]:
        for number, (kind, ref_id) in enumerate(listed, 1):
            last = number == len(listed)
            yield from branch(kind, ref_id, before, "└─ " if last else "├─ ", "   " if last else "│  ")

    yield f"{found['step']}  {found['status']}"
    yield from level([("", ref_id) for ref_id in found["roots"]], "")


def _described(node: Row, execution_id: str, *, again: bool) -> str:
    where = "" if node["execution_id"] == execution_id else f"{node['execution_id']}/"
    name = f"{where}{node['step']}" + (f".{node['task']}" if node["task"] else "")
    if again:
        return f"{name}  (above)"
    kind = (node["tool"] or {}).get("kind") or node["kind"]
    provenance = "".join(f" {key}={value}" for key, value in node["provenance"].items())
    return f"{name}  {kind}  {_stored(node)}  {node['at'][:19].replace('T', ' ')}{provenance}"


# ---- words -------------------------------------------------------------------------------------------------------------


def _stored(reference: Row | None) -> str:
    if reference is None:
        return "nothing"
    rows = f"{reference['rows']} rows, " if reference["rows"] is not None else ""
    return f"{rows}{_bytes(reference['bytes'])} {reference['format'] or ''}".rstrip()


def _bytes(size: int | None) -> str:
    if size is None:
        return "in parts"
    if size < 1_000:
        return f"{size} B"
    power = min((len(str(size)) - 1) // 3, len(UNITS))
    return f"{size / 1000**power:.1f} {UNITS[power - 1]}"


def _pretty(value: Any, indent: int | None = 2) -> str:
    import json

    return json.dumps(value, ensure_ascii=False, indent=indent)
