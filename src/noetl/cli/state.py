"""`noetl state`: shows and changes the values that a playbook keeps between its executions."""

import json
from typing import Annotated, Any

import typer

from noetl.cli.client import run_with_client
from noetl.cli.options import AsJson
from noetl.cli.output import print_table, say, say_json, say_row, shorten_text
from noetl.cli.payloads import parse_plain_yaml

ABOUT = """Values that a playbook keeps between its executions: watermarks, cursors, counts.

\b
  noetl state list etl/orders
  noetl state get etl/orders watermark
  noetl state history etl/orders watermark

Playbooks read {{ state.watermark }} and write it with `set: {state.watermark: …}`. An execution fails with STATE_CONFLICT
if it writes a value that somebody else has written since it read it.
"""
BookPath = Annotated[
    str, typer.Argument(metavar="PATH", help="the path of the playbook in the catalog")
]
StateName = Annotated[str, typer.Argument(metavar="NAME", help="as in state.NAME")]
IfVersion = Annotated[
    int | None,
    typer.Option(
        "--if-version",
        metavar="N",
        help="only if this is the current version; 0: only if it was never set",
    ),
]


def register(app: typer.Typer) -> None:
    group = typer.Typer(name="state", help=ABOUT, no_args_is_help=True, rich_markup_mode=None)
    group.command("list")(list_state)
    group.command()(get)
    group.command("set")(set_value)
    group.command()(unset)
    group.command()(history)
    app.add_typer(group)


def list_state(
    path: Annotated[
        str | None, typer.Argument(metavar="[PATH]", help="the path of one playbook; default: all")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the values of a playbook, or of all."""
    rows = run_with_client(lambda client: client.list_state_values(path))
    if as_json:
        say_json(rows)
    elif not rows:
        say("no state: a playbook keeps some with `set: {state.NAME: …}`")
    else:
        table = []
        for row in rows:
            value = _format_state_value(row["value"])
            table.append((row["path"], row["name"], value, row["version"], _describe_writer(row)))
        print_table(("PATH", "NAME", "VALUE", "VERSION", "WRITTEN BY"), table)


def get(path: BookPath, name: StateName, as_json: AsJson = False) -> None:
    """Print a value as JSON; with --json its version and who wrote it too."""
    row = run_with_client(lambda client: client.get_state_value(path, name))
    if as_json:
        say_json(row)
    else:
        say_json(row["value"])


def set_value(
    path: BookPath,
    name: StateName,
    value: Annotated[str, typer.Argument(metavar="VALUE", help="YAML: 50, 2026-01-31, {eu: 7}")],
    if_version: IfVersion = None,
    as_json: AsJson = False,
) -> None:
    """Set a value. Running executions that have read it fail when they write it.

    \b
    Examples:
      noetl state set etl/orders watermark 5000
      noetl state set etl/orders watermark 5000 --if-version 7
    """
    data = parse_plain_yaml(value, "VALUE")
    row = run_with_client(lambda client: client.set_state(path, name, data, if_version))
    sentence = f"{path} {name} is {_format_state_value(row['value'])}, version {row['version']}"
    say_row(row, sentence, as_json=as_json)


def unset(
    path: BookPath, name: StateName, if_version: IfVersion = None, as_json: AsJson = False
) -> None:
    """Remove a value: the next execution finds it undefined."""
    row = run_with_client(lambda client: client.unset_state(path, name, if_version))
    say_row(row, f"{path} {name} is unset, version {row['version']}", as_json=as_json)


def history(path: BookPath, name: StateName, as_json: AsJson = False) -> None:
    """Show the last 100 versions of a value, newest first, and which execution wrote each."""
    rows = run_with_client(lambda client: client.list_state_history(path, name))
    if as_json:
        say_json(rows)
        return
    table = []
    for row in rows:
        value = "unset" if row["unset"] else _format_state_value(row["value"])
        moment = row["at"][:19]
        table.append((row["version"], value, moment, _describe_writer(row), row["seq"] or ""))
    print_table(("VERSION", "VALUE", "AT", "WRITTEN BY", "EVENT"), table)


def _describe_writer(row: dict[str, Any]) -> str:
    """The execution or the person that wrote a value."""
    if row["execution_id"] is not None:
        return f"execution {row['execution_id']}"
    return str(row["by"] or "")


def _format_state_value(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return shorten_text(text, 60)
