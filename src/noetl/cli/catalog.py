"""`noetl catalog`: playbooks by path and version."""

from pathlib import Path
from typing import Annotated

import typer

from noetl.cli.arguments import TEST_FILE_ENDINGS, find_playbook_files, read_text_file
from noetl.cli.client import run_with_client
from noetl.cli.language import check_playbook_or_raise
from noetl.cli.launch import suggest_playbook
from noetl.cli.options import AsJson
from noetl.cli.output import print_table, say, say_json, say_row, warn
from noetl.client.rows import Row, RowClient
from noetl.model.errors import InvalidInput, NotFound

ABOUT = """Playbooks as they are registered: by path, each text with a version of its own.

\b
  noetl catalog register playbooks/*.yaml
  noetl catalog diff examples/hello
"""
CatalogPath = Annotated[str, typer.Argument(metavar="PATH", help="a path of the catalog")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(name="catalog", help=ABOUT, no_args_is_help=True, rich_markup_mode=None)
    group.command("register")(register_files)
    group.command("list")(list_playbooks)
    group.command()(get)
    group.command()(diff)
    app.add_typer(group)


def register_files(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE|DIR…", help="playbooks, or folders searched for *.yaml"),
    ],
    path: Annotated[
        str | None,
        typer.Option("--path", help="register under this path instead of its own; one file"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check playbooks and register them. A text that is registered already keeps its version.

    Example: noetl catalog register playbooks/
    """
    paths: list[Path] = []
    for argument in files:
        paths += find_playbook_files(argument)
    if not paths:
        raise InvalidInput(
            f"no playbooks in {', '.join(map(str, files))}",
            hint=f"names of playbooks end with .yaml or .yml; {TEST_FILE_ENDINGS[0]} is a test",
        )
    if path is not None and len(paths) != 1:
        raise InvalidInput(
            f"--path names one playbook, and there are {len(paths)} files", hint="give one file"
        )
    texts = [(file, read_text_file(file)) for file in paths]
    for file, text in texts:
        check_playbook_or_raise(
            text, str(file)
        )  # checks all of them before the first is registered

    async def work(client: RowClient) -> list[Row]:
        rows: list[Row] = []
        for file, text in texts:
            registered = await client.register(text, path)
            rows.append({"file": str(file), **registered})
        return rows

    rows = run_with_client(work)
    _warn_of_missing_names(rows)
    if as_json:
        say_json(rows)
        return
    table = []
    for row in rows:
        change = "new" if row["created"] else "as it was"
        table.append((row["path"], row["version"], change, row["file"]))
    print_table(("PATH", "VERSION", "", "FILE"), table)


def _warn_of_missing_names(rows: list[Row]) -> None:
    """Warn of children and credentials that the playbooks name and the server does not have.

    A playbook may be checked before its child is registered, so children among `rows` are no
    reason for a warning.
    """
    registered = [f"no playbook `{row['path']}` is" for row in rows]
    for row in rows:
        for finding in row.get("findings", ()):
            if finding["code"] not in ("UNKNOWN_PLAYBOOK", "UNKNOWN_CREDENTIAL"):
                continue
            if not any(words in finding["message"] for words in registered):
                warn(f"{row['file']}:{finding['line']}: {finding['message']}", finding["hint"])


def list_playbooks(
    prefix: Annotated[
        str, typer.Argument(metavar="[PREFIX]", help="only paths that begin with this")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """List registered playbooks, each with its latest version."""
    rows = run_with_client(lambda client: client.list_playbooks(prefix))
    if as_json:
        say_json(rows)
    elif not rows:
        say("no playbooks: noetl catalog register FILE adds one")
    else:
        print_table(
            ("PATH", "VERSION", "HASH"),
            [(row["path"], row["version"], row["hash"][:12]) for row in rows],
        )


Version = Annotated[
    int | None, typer.Option("--version", min=1, help="this version; without it the latest")
]


def get(path: CatalogPath, version: Version = None, as_json: AsJson = False) -> None:
    """Print a registered playbook.

    Example: noetl catalog get examples/hello --version 1
    """
    row = run_with_client(lambda client: _get_playbook_or_hint(client, path, version))
    say_row(row, row["content"].rstrip("\n"), as_json=as_json)


async def _get_playbook_or_hint(client: RowClient, path: str, version: int | None = None) -> Row:
    try:
        return await client.get_playbook(path, version)
    except NotFound as error:
        known = await client.list_playbooks(path)
        if any(row["path"] == path for row in known):
            raise  # there is no such version
        raise NotFound(str(error), hint=await suggest_playbook(client, path)) from error


def diff(
    path: CatalogPath,
    older: Annotated[
        int | None, typer.Option("--from", min=1, help="without it, the one before the latest")
    ] = None,
    newer: Annotated[int | None, typer.Option("--to", min=1, help="without it, the latest")] = None,
    as_json: AsJson = False,
) -> None:
    """Compare two versions of a playbook.

    Example: noetl catalog diff examples/hello --from 1 --to 3
    """

    async def work(client: RowClient) -> Row:
        latest = await _get_playbook_or_hint(client, path)
        before = (newer or latest["version"]) - 1
        return await client.diff_versions(path, older or max(1, before), newer)

    row = run_with_client(work)
    equal = f"versions {row['older']} and {row['newer']} of {path} are equal"
    say_row(row, row["diff"].rstrip("\n") or equal, as_json=as_json)
