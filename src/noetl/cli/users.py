"""`noetl user`: people who sign in to the page with a name and a password."""

import getpass
import sys
from typing import Annotated

import typer

from noetl.cli.client import run_with_client
from noetl.cli.options import AsJson
from noetl.cli.output import print_table, say, say_json, say_row
from noetl.client.rows import Row
from noetl.model.errors import InvalidInput

ABOUT = """People who sign in to the page with a name and a password.

\b
  noetl user create ada --role operator
  noetl user list
  noetl user disable ada

A password is asked for in the terminal, or is the first line of standard input. Programs and workers have tokens: noetl token.
"""
ROLE_HELP = "viewer, operator, author or admin; may be repeated"
MAX_LINE_CHARS = 10_000  # of standard input
Name = Annotated[str, typer.Argument(metavar="NAME", help="its name or id: noetl user list")]
Roles = Annotated[list[str], typer.Option("--role", metavar="R", help=ROLE_HELP)]


def register(app: typer.Typer) -> None:
    group = typer.Typer(name="user", help=ABOUT, no_args_is_help=True, rich_markup_mode=None)
    group.command()(create)
    group.command("list")(list_users)
    group.command()(disable)
    group.command()(enable)
    group.command()(password)
    group.command()(roles)
    app.add_typer(group)


def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="with which the user signs in")],
    role_names: Roles,
    as_json: AsJson = False,
) -> None:
    """Make a user. The password has at least 12 characters; it is asked for, or read from standard input.

    \b
    Examples:
      noetl user create ada --role operator
      pass show noetl/ada | noetl user create ada --role operator
    """
    secret = read_password()
    wanted = {"name": name, "roles": role_names, "password": secret}
    row = run_with_client(lambda client: client.create_user(**wanted))
    role_text = ", ".join(row["roles"])
    say_row(row, f"user {row['name']} ({role_text}) is made", as_json=as_json)


def list_users(as_json: AsJson = False) -> None:
    """List users: names, roles and who signs them in."""
    rows = run_with_client(lambda client: client.list_users())
    if as_json:
        say_json(rows)
    elif not rows:
        say("no users: noetl user create NAME --role ROLE makes one")
    else:
        heads = ("ID", "NAME", "ROLES", "SIGNED IN BY", "CREATED BY", "STATE")
        print_table(heads, list(map(_make_cells, rows)))


def disable(name: Name, as_json: AsJson = False) -> None:
    """Let a user sign in no more, and end the sessions of this user within five seconds."""
    row = run_with_client(lambda client: client.change_user(name, "disable"))
    say_row(row, f"user {row['name']} is disabled, the sessions have ended", as_json=as_json)


def enable(name: Name, as_json: AsJson = False) -> None:
    """Let a user who was disabled sign in again."""
    row = run_with_client(lambda client: client.change_user(name, "enable"))
    say_row(row, f"user {row['name']} may sign in", as_json=as_json)


def password(name: Name, as_json: AsJson = False) -> None:
    """Set another password, and end the sessions of this user.

    Example: pass show noetl/ada | noetl user password ada
    """
    secret = read_password()
    row = run_with_client(lambda client: client.set_user_password(name, secret))
    sentence = f"user {row['name']} has another password, the sessions have ended"
    say_row(row, sentence, as_json=as_json)


def roles(name: Name, role_names: Roles, as_json: AsJson = False) -> None:
    """Give a user these roles instead of the present ones, and end the sessions of this user.

    Example: noetl user roles ada --role author
    """
    row = run_with_client(lambda client: client.set_user_roles(name, role_names))
    role_text = ", ".join(row["roles"])
    sentence = f"user {row['name']} has the role {role_text}, the sessions have ended"
    say_row(row, sentence, as_json=as_json)


def read_password() -> str:
    """The password, typed twice in the terminal, or the first line of standard input."""
    if not sys.stdin.isatty():
        line = sys.stdin.readline(MAX_LINE_CHARS).rstrip("\r\n")
        if not line:
            raise InvalidInput(
                "standard input has no password", hint="its first line is the password"
            )
        return line
    typed = getpass.getpass("password: ")
    if getpass.getpass("the same again: ") != typed:
        raise InvalidInput("the two are not the same", hint="nothing was changed: try again")
    return typed


def _make_cells(row: Row) -> tuple[str, ...]:
    return (
        row["user_id"],
        row["name"],
        ", ".join(row["roles"]),
        row["issuer"] or "password",
        row["created_by"],
        "active" if row["disabled_at"] is None else "disabled",
    )
