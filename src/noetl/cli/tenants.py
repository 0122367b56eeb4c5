"""`noetl tenant`: groups of users who share an installation and see nothing of each other."""

from typing import Annotated

import typer

from noetl.cli.client import run_with_client
from noetl.cli.options import AsJson
from noetl.cli.output import print_table, say, say_json, say_row
from noetl.client.rows import Row, RowClient
from noetl.model.errors import InvalidInput

ABOUT = """Tenants: groups of users who share an installation and see nothing of each other.

\b
  noetl tenant create acme
  noetl token create acme-admin --role admin --tenant acme
  noetl token create acme-box --role worker --tenant acme
  noetl tenant quota set acme --running 100 --bytes 50000000000
  noetl tenant show acme

Each tenant has executions, playbooks, credentials, schedules, hooks and workers of its own. Only administrators of the tenant
`default`, which is the installation's own, use these commands.
"""
QUOTA_ABOUT = "The most that a tenant may have before a start is refused."
NAMES = ("running", "queued", "bytes")
NO_QUOTA = "none"
TenantName = Annotated[str, typer.Argument(metavar="NAME", help="small letters, digits and '-'")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(name="tenant", help=ABOUT, no_args_is_help=True, rich_markup_mode=None)
    group.command()(create)
    group.command("list")(list_tenants)
    group.command()(show)
    quotas = typer.Typer(
        name="quota", help=QUOTA_ABOUT, no_args_is_help=True, rich_markup_mode=None
    )
    quotas.command("set")(set_quotas)
    quotas.callback()(_describe_quotas)
    group.add_typer(quotas)
    app.add_typer(group)


def _describe_quotas() -> None:
    """The most that a tenant may have before a start is refused."""


def create(name: TenantName, as_json: AsJson = False) -> None:
    """Make a tenant without quotas. Its users and workers need tokens: noetl token create --tenant NAME."""
    row = run_with_client(lambda client: client.create_tenant(name))
    hint = f"noetl token create NAME --role admin --tenant {name}"
    say_row(row, f"tenant {name} is made; a token for its administrator: {hint}", as_json=as_json)


def list_tenants(as_json: AsJson = False) -> None:
    """List tenants and their quotas."""
    rows = run_with_client(lambda client: client.list_tenants())
    if as_json:
        say_json(rows)
        return
    titles = ("NAME", "NUMBER", "RUNNING", "QUEUED", "BYTES")
    print_table(titles, [_make_cells(row) for row in rows])


def show(name: TenantName, as_json: AsJson = False) -> None:
    """Show the quotas of a tenant, and what it uses now."""
    row = run_with_client(lambda client: client.get_tenant(name))
    if as_json:
        say_json(row)
        return
    say(f"tenant {row['name']}, number {row['number']}, made at {row['created_at'][:19]}")
    cells = [
        (quota, str(row["usage"][quota]), _format_quota(row["quotas"][quota])) for quota in NAMES
    ]
    print_table(("QUOTA", "USED", "LIMIT"), cells)


def set_quotas(
    name: TenantName,
    running: Annotated[
        str | None,
        typer.Option(metavar="N", help="executions that have not ended; none: no quota"),
    ] = None,
    queued: Annotated[
        str | None,
        typer.Option(metavar="N", help="commands that wait for a worker; none: no quota"),
    ] = None,
    most_bytes: Annotated[
        str | None, typer.Option("--bytes", metavar="N", help="of stored results; none: no quota")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Set quotas of a tenant; those that are not named stay as they are.

    A start that exceeds a quota is refused. What was accepted before goes on to its end, with its children and retries.

    Example: noetl tenant quota set acme --running 100 --queued none
    """
    given = {"running": running, "queued": queued, "bytes": most_bytes}
    changes = {quota: _read_quota(quota, text) for quota, text in given.items() if text is not None}
    if not changes:
        raise InvalidInput("which quota?", hint="--running N, --queued N or --bytes N")
    row = run_with_client(lambda client: _change_quotas(client, name, changes))
    limits = ", ".join(f"{quota} {_format_quota(row['quotas'][quota])}" for quota in NAMES)
    say_row(row, f"quotas of tenant {name}: {limits}", as_json=as_json)


async def _change_quotas(client: RowClient, name: str, changes: dict[str, int | None]) -> Row:
    before = (await client.get_tenant(name))["quotas"]
    return await client.set_tenant_quotas(name, {**before, **changes})


def _read_quota(quota: str, text: str) -> int | None:
    if text == NO_QUOTA:
        return None
    if not (text.isascii() and text.isdigit()):
        raise InvalidInput(f"--{quota} {text}: not a whole number", hint=f"a number, or {NO_QUOTA}")
    return int(text)


def _format_quota(limit: int | None) -> str:
    return NO_QUOTA if limit is None else str(limit)


def _make_cells(row: Row) -> tuple[str, ...]:
    limits = [_format_quota(row["quotas"][quota]) for quota in NAMES]
    return (row["name"], str(row["number"]), *limits)
