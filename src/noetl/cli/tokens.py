"""`noetl token`: tokens with which people, programs and workers call a server."""

import sys
from typing import Annotated

import typer

from noetl.cli.client import run_with_client
from noetl.cli.options import AsJson
from noetl.cli.output import print_table, say, say_json, say_row
from noetl.client.rows import Row
from noetl.model.errors import InvalidInput
from noetl.playbook.durations import parse_micros

ABOUT = """Tokens with which people, programs and workers call a server.

\b
  noetl token create ci --role operator --expires 90d
  noetl token create gpu-box --role worker --pool gpu
  noetl token list
  noetl token revoke f3Qk0aLs9ZxY

Commands and workers on the machine of the server need none: its home has tokens of its own, which only its user can read.
Elsewhere, set NOETL_TOKEN.
"""
TENANT_HELP = "for administrators of the installation: of this tenant"
ROLE_HELP = "viewer, operator, author, admin or worker; may be repeated"
MICROS_PER_SECOND = 1_000_000
NEVER = "-"


def register(app: typer.Typer) -> None:
    group = typer.Typer(name="token", help=ABOUT, no_args_is_help=True, rich_markup_mode=None)
    group.command()(create)
    group.command("list")(list_tokens)
    group.command()(revoke)
    app.add_typer(group)


def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="who uses it")],
    roles: Annotated[list[str], typer.Option("--role", metavar="R", help=ROLE_HELP)],
    pools: Annotated[
        list[str] | None,
        typer.Option("--pool", metavar="P", help="of a worker: only this pool; may be repeated"),
    ] = None,
    expires: Annotated[
        str | None,
        typer.Option("--expires", metavar="IN", help="12h, 90d; without it, it does not expire"),
    ] = None,
    tenant: Annotated[str | None, typer.Option("--tenant", metavar="T", help=TENANT_HELP)] = None,
    as_json: AsJson = False,
) -> None:
    """Make a token and print it. It is shown only now: the server stores its sum.

    \b
    Roles, each with what the one before it may do:
      viewer     looks at executions, results, logs and playbooks
      operator   starts, stops, repeats and answers executions
      author     registers playbooks, schedules and hooks
      admin      stores credentials, makes tokens
    And:
      worker     takes commands, reports them, and reads the credentials they name

    Example: NOETL_TOKEN=$(noetl token create ci --role operator --expires 90d)
    """
    wanted = {
        "name": name,
        "roles": roles,
        "pools": pools,
        "lifetime_s": _read_lifetime(expires),
        "tenant": tenant,
    }
    row = run_with_client(lambda client: client.create_token(**wanted))
    if as_json:
        say_json(row)
        return
    say(row["token"])
    role_names = ", ".join(row["roles"])
    made = f"token {row['token_id']} of {name} ({role_names}) is made"
    note = f"{made}. Keep it: it is shown only now"
    print(note, file=sys.stderr)


def list_tokens(
    tenant: Annotated[str | None, typer.Option("--tenant", metavar="T", help=TENANT_HELP)] = None,
    as_json: AsJson = False,
) -> None:
    """List tokens: what they are for, never their texts."""
    rows = run_with_client(lambda client: client.list_tokens(tenant))
    if as_json:
        say_json(rows)
    elif not rows:
        say("no tokens: noetl token create NAME --role ROLE makes one")
    else:
        print_table(
            ("ID", "NAME", "ROLES", "POOLS", "CREATED BY", "EXPIRES", "STATE"),
            list(map(_make_cells, rows)),
        )


def revoke(
    token_id: Annotated[
        str, typer.Argument(metavar="ID", help="its id or its name: noetl token list")
    ],
    tenant: Annotated[str | None, typer.Option("--tenant", metavar="T", help=TENANT_HELP)] = None,
    as_json: AsJson = False,
) -> None:
    """Revoke a token for good, and the sessions of browsers that were opened with it. Servers refuse it within five seconds."""
    row = run_with_client(lambda client: client.revoke_token(token_id, tenant))
    say_row(row, f"token {row['token_id']} of {row['name']} is revoked", as_json=as_json)


def _read_lifetime(expires: str | None) -> int | None:
    """The lifetime in seconds."""
    if expires is None:
        return None
    try:
        seconds = parse_micros(expires) // MICROS_PER_SECOND
    except ValueError as error:
        raise InvalidInput(f"--expires: {error}") from None
    if seconds < 1:
        raise InvalidInput(f"--expires {expires}: a token lives for at least a second")
    return seconds


def _make_cells(row: Row) -> tuple[str, ...]:
    pools = NEVER if row["pools"] is None else ", ".join(row["pools"])
    expires = NEVER if row["expires_at"] is None else row["expires_at"][:19]
    return (
        row["token_id"],
        row["name"],
        ", ".join(row["roles"]),
        pools,
        row["created_by"],
        expires,
        _describe_state(row),
    )


def _describe_state(row: Row) -> str:
    if row["valid"]:
        return "valid"
    return "expired" if row["revoked_at"] is None else "revoked"
