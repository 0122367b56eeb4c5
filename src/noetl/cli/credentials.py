"""`noetl credential`: stores the credentials that playbooks use by name."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from noetl.cli.arguments import read_text_file
from noetl.cli.client import run_with_client
from noetl.cli.options import AsJson
from noetl.cli.output import print_table, say, say_json, say_row
from noetl.model.duplicate_keys import find_duplicate_key
from noetl.model.errors import InvalidInput

ABOUT = """Credentials that playbooks use by name: stored encrypted, shown to nobody, opened by workers alone.

\b
  noetl credential add warehouse --kind postgres --file warehouse.json
  noetl credential list

The key is NOETL_HOME/credentials.key, made with the first one. Keep a copy of it: without it they cannot be opened.
"""
Name = Annotated[str, typer.Argument(metavar="NAME", help="what playbooks call it")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(name="credential", help=ABOUT, no_args_is_help=True, rich_markup_mode=None)
    group.command()(add)
    group.command("list")(list_credentials)
    group.command()(rewrap)
    group.command()(delete)
    app.add_typer(group)


def add(
    name: Name,
    kind: Annotated[
        str | None,
        typer.Option("--kind", metavar="K", help="postgres, bearer, basic, or generic: any fields"),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            "--data",
            metavar="JSON",
            help="its fields; other users may see a command line: use --file",
        ),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file", metavar="F", help="its fields, as JSON in a file; - is standard input"
        ),
    ] = None,
    vault: Annotated[
        str | None,
        typer.Option("--vault", metavar="PATH", help="its value stays in Vault, at this path"),
    ] = None,
    mounted: Annotated[
        str | None,
        typer.Option(
            "--mounted",
            metavar="PATH",
            help="its value stays in a file, or the files of a folder, below NOETL_SECRETS_DIR of the workers",
        ),
    ] = None,
    fields: Annotated[
        str | None,
        typer.Option(
            "--fields",
            metavar="F,…",
            help="with --vault or --mounted: the fields it must have, as FIELD or FIELD=NAME_THERE",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Store a credential, encrypted. One of the same name is replaced; workers have the new one within ten seconds.

    \b
    Fields:
      postgres   dsn; or host, port, database, user, password, sslmode …
      bearer     token
      basic      username, password
      generic    whatever playbooks ask for: {{ keychain.NAME.FIELD }}

    With --vault or --mounted only the place is stored, and workers read the value there.

    \b
    Examples:
      noetl credential add warehouse --kind postgres --file warehouse.json
      noetl credential add warehouse --vault secret/data/warehouse --fields host,user=username,password
      pass show api | jq -R '{token: .}' | noetl credential add api --kind bearer --file -
    """
    if vault is None and mounted is None:
        if kind is None or fields is not None:
            raise InvalidInput(
                "a credential needs --kind with --file, or --vault, or --mounted",
                hint=f"noetl credential add {name} --kind bearer --file -",
            )
        values = read_fields(data, file)
    else:
        if kind or data or file or (vault and mounted):
            raise InvalidInput(
                "--vault and --mounted stand alone, or with --fields: the value is not stored",
            )
        kind = "file" if vault is None else "vault"
        values = {"path": vault or mounted}
        if fields is not None:
            values["fields"] = parse_field_names(fields)
    row = run_with_client(lambda client: client.add_credential(name, kind, values))
    change = "stored" if row["created"] else "replaced"
    sentence = f"credential {row['name']} ({row['kind']}) is {change}"
    say_row(row, sentence, as_json=as_json)


def list_credentials(as_json: AsJson = False) -> None:
    """List stored credentials: names and kinds, never values."""
    rows = run_with_client(lambda client: client.list_credentials())
    if as_json:
        say_json(rows)
    elif not rows:
        say("no credentials: noetl credential add NAME --kind KIND --file FILE stores one")
    else:
        print_table(
            ("NAME", "KIND", "CHANGED"),
            [(row["name"], row["kind"], row["changed_at"][:19]) for row in rows],
        )


def rewrap(as_json: AsJson = False) -> None:
    """Encrypt the keys of all credentials with the newest key of the key file. Their values stay as they are.

    Run it after you have put a new key into the first line of credentials.key, on every server. It may be interrupted and run
    again, also while executions use the credentials. When it says that none is left, remove the old lines.

    \b
    Exit code: 0 all credentials have the newest key, 1 some cannot be opened by any key.
    """
    total: dict[str, Any] = {"rewrapped": 0}
    while True:
        row = run_with_client(lambda client: client.rewrap_credentials())
        total = {**row, "rewrapped": total["rewrapped"] + row["rewrapped"]}
        if not row["left"] or (not row["rewrapped"] and row["left"] == total.get("left")):
            break
        if not as_json:
            say(
                f"{total['rewrapped']} of {total['total']} credentials rewrapped, {row['left']} left"
            )
    names = ", ".join(total["unreadable"])
    sentence = f"{total['rewrapped']} of {total['total']} credentials rewrapped, the others had the newest key already"
    if names:
        sentence = (
            f"{total['rewrapped']} of {total['total']} credentials rewrapped; no key opens {names}"
        )
    say_row(total, sentence, as_json=as_json)
    if names:
        raise typer.Exit(1)


def delete(name: Name, as_json: AsJson = False) -> None:
    """Delete a credential. From then on, steps that ask for it fail."""
    row = run_with_client(lambda client: client.delete_credential(name))
    say_row(row, f"credential {row['name']} is deleted", as_json=as_json)


def parse_field_names(text: str) -> dict[str, str]:
    """`user=username,password`: the fields of a credential, each with its name in the secret."""
    names: dict[str, str] = {}
    for part in text.split(","):
        field, _, its_name = part.strip().partition("=")
        if not field:
            raise InvalidInput("--fields has an empty name", hint="--fields user=username,password")
        names[field] = its_name or field
    return names


def read_fields(data: str | None, file: Path | None) -> dict[str, Any]:
    """The fields of a credential, read from JSON. Errors name the place, never the content."""
    if (data is None) == (file is None):
        raise InvalidInput(
            "the fields come from --data or from --file", hint="--file fields.json, or --file -"
        )
    if data is not None:
        where, text = "--data", data
    elif str(file) == "-":
        where, text = "standard input", sys.stdin.read()
    else:
        where, text = str(file), read_text_file(Path(str(file)).expanduser())
    try:
        fields = json.loads(text)
        duplicate = find_duplicate_key(text)
    except ValueError as error:
        place = ""
        if isinstance(error, json.JSONDecodeError):
            place = f" (line {error.lineno}, column {error.colno})"
        raise InvalidInput(
            f"{where} is not JSON{place}", hint='a JSON object, for example {"token": "…"}'
        ) from None
    if not isinstance(fields, dict):
        raise InvalidInput(f"{where} is not a JSON object", hint='for example {"token": "…"}')
    if duplicate is not None:
        raise InvalidInput(
            f"{where}: the key {duplicate!r} stands twice in one object", hint="keep one of them"
        )
    return fields
