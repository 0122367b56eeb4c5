"""`noetl audit`: who changed what, and whether the trail is whole."""

from typing import Annotated, get_args

import typer

from noetl.audit.chain import ChainCheck
from noetl.audit.port import AuditHead, AuditOutcome, ChainedEntry
from noetl.cli.client import run_with_client
from noetl.cli.options import AsJson
from noetl.cli.output import EXIT_FAILED, print_table, say, say_json
from noetl.client.rows import Row, RowClient
from noetl.model.errors import InvalidInput

ABOUT = """Who changed what: tokens, credentials, playbooks, schedules, hooks, executions, and refused calls.

\b
  noetl audit list
  noetl audit list --operation token --by ci
  noetl audit verify
  noetl audit verify --expect 9f2c…

The trail is a chain: each entry has a hash over itself and the entry before it. `verify` prints the hash of the last entry.
Keep it elsewhere: a chain that still has it was neither cut nor written again.
"""
HASH_CHARS = 64
OUTCOMES = get_args(AuditOutcome)
NONE = "-"


def register(app: typer.Typer) -> None:
    group = typer.Typer(name="audit", help=ABOUT, no_args_is_help=True, rich_markup_mode=None)
    group.command("list")(list_audit)
    group.command()(verify)
    app.add_typer(group)


def list_audit(
    operation: Annotated[
        str | None,
        typer.Option("--operation", metavar="O", help="token.revoke, or token for all of them"),
    ] = None,
    by: Annotated[str | None, typer.Option("--by", metavar="NAME", help="of this caller")] = None,
    outcome: Annotated[
        str | None, typer.Option("--outcome", metavar="O", help="allowed, failed or refused")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=500, help="entries, at most")] = 50,
    before: Annotated[
        int | None, typer.Option("--before", metavar="N", help="entries before this one")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the newest entries of the audit trail."""
    if outcome is not None and outcome not in OUTCOMES:
        raise InvalidInput(f"--outcome {outcome}: it is {', '.join(OUTCOMES)}")
    wanted = {"operation": operation, "by": by, "outcome": outcome}
    rows = run_with_client(lambda client: client.list_audit(before=before, limit=limit, **wanted))
    if as_json:
        say_json(rows)
    elif not rows:
        say("no entries")
    else:
        print_table(
            ("N", "AT", "BY", "OPERATION", "OBJECT", "OUTCOME", "FROM"),
            list(map(_make_cells, rows)),
        )


def verify(
    expect: Annotated[
        str | None,
        typer.Option("--expect", metavar="HASH", help="a hash that verify printed earlier"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check the chain of the audit trail, and print the hash of its last entry. Names the first entry that was changed,
    removed or inserted, and exits with 1.
    """
    if expect is not None and len(expect) != HASH_CHARS:
        raise InvalidInput(f"--expect: a hash has {HASH_CHARS} characters")
    report = run_with_client(lambda client: _verify_chain(client, expect))
    if as_json:
        say_json(report)
    elif report["fault"] is not None:
        say(f"the audit trail is broken: {report['fault']['message']}")
        say(f"{report['checked']} entries before that are whole")
    else:
        say(f"{report['checked']} entries are whole")
        say(f"head {report['head']}")
    if report["fault"] is not None:
        raise typer.Exit(EXIT_FAILED)


async def _verify_chain(client: RowClient, expect: str | None) -> Row:
    """Read the chain page by page and check it here, without trusting the server's word."""
    page = await client.read_audit_chain(0)
    check = ChainCheck(page["tenant"], None if expect is None else expect.lower())
    while True:
        entries = [
            ChainedEntry(row["seq"], row["at_us"], row["text"], row["hash"])
            for row in page["entries"]
        ]
        fault = check.check_entries(entries)
        if fault is not None:
            break
        if not entries:
            fault = check.check_end(_read_head(page))
            break
        page = await client.read_audit_chain(check.seq)
    found = None
    if fault is not None:
        found = {"seq": fault.seq, "kind": fault.kind, "message": fault.message}
    return {"checked": check.seq, "head": check.hash, "fault": found}


def _read_head(page: Row) -> AuditHead | None:
    head = page["head"]
    if head is None:
        return None
    return AuditHead(head["seq"], head["hash"])


def _make_cells(row: Row) -> tuple[str, ...]:
    outcome = row["outcome"]
    if row["code"] is not None:
        outcome = f"{outcome} ({row['code']})"
    if row["count"] > 1:
        outcome = f"{outcome} x{row['count']}"
    return (
        str(row["seq"]),
        row["at"][:19],
        row["by"] or row["token_id"] or NONE,
        row["operation"],
        row["object"] or NONE,
        outcome,
        row["address"] or NONE,
    )
