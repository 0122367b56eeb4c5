"""`noetl hook`: starts playbooks by HTTP calls from outside."""

from typing import Annotated, Any

import typer

from noetl.cli.client import run_with_client
from noetl.cli.options import AsJson
from noetl.cli.output import print_table, say, say_json, say_row

ABOUT = """Playbooks that start by a call from outside: POST /api/hooks/NAME, with a JSON body.

\b
  noetl hook add orders shop/order --into order
  curl -d '{"id": 7}' -H 'Idempotency-Key: order-7' http://127.0.0.1:8082/api/hooks/orders

A call that is repeated with the same key starts no second execution and gets the same answer.
"""
Name = Annotated[str, typer.Argument(metavar="NAME", help="its name, the end of its address")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(name="hook", help=ABOUT, no_args_is_help=True, rich_markup_mode=None)
    group.command()(add)
    group.command("list")(list_hooks)
    group.command()(delete)
    app.add_typer(group)


def add(
    name: Name,
    path: Annotated[str, typer.Argument(metavar="PATH", help="a playbook of the catalog")],
    version: Annotated[
        int | None,
        typer.Option("--version", min=1, help="this version; without it the latest at each call"),
    ] = None,
    into: Annotated[
        str | None,
        typer.Option(
            "--into",
            metavar="K",
            help="the workload key that gets the body; default: its keys replace those of the workload",
        ),
    ] = None,
    secret: Annotated[
        str | None,
        typer.Option(
            "--secret", metavar="CREDENTIAL", help="its field `secret` must have signed every call"
        ),
    ] = None,
    signature_header: Annotated[
        str | None,
        typer.Option("--signature-header", metavar="H", help="default: X-Hub-Signature-256"),
    ] = None,
    key_header: Annotated[
        str | None,
        typer.Option(
            "--key-header",
            metavar="H",
            help="a header that identifies a call instead of Idempotency-Key; then every call needs it",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Add a hook. One of the same name is replaced.

    Without --into the body is a JSON object whose keys go over the playbook's workload: a caller may then set any of them.

    A signature is HMAC-SHA256 of the body in hex, with or without `sha256=` before it, as GitHub sends it.

    \b
    Examples:
      noetl hook add orders shop/order --into order
      noetl credential add github --kind generic --file secret.json     {"secret": "…"}
      noetl hook add pushes ci/build --into push --secret github --key-header X-GitHub-Delivery
    """
    call: dict[str, Any] = {
        "name": name,
        "path": path,
        "version": version,
        "into": into,
        "secret": secret,
        "signature_header": signature_header,
        "key_header": key_header,
    }
    row = run_with_client(lambda client: client.add_hook(**call))
    change = "added" if row["created"] else "replaced"
    say_row(row, f"hook {name} is {change}: POST /api/hooks/{name}", as_json=as_json)


def list_hooks(as_json: AsJson = False) -> None:
    """List hooks."""
    rows = run_with_client(lambda client: client.list_hooks())
    if as_json:
        say_json(rows)
    elif not rows:
        say("no hooks: noetl hook add NAME PATH adds one")
    else:
        print_table(
            ("NAME", "PLAYBOOK", "INTO", "SECRET", "KEY"),
            [
                (hook["name"], hook["path"], hook["into"], hook["secret"], hook["key_header"])
                for hook in rows
            ],
        )


def delete(name: Name, as_json: AsJson = False) -> None:
    """Delete a hook. Executions that it started continue."""
    row = run_with_client(lambda client: client.delete_hook(name))
    say_row(row, f"hook {name} is deleted", as_json=as_json)
