"""`noetl signal`, `noetl exec approve` and `reject`: answer what an execution waits for."""

import re
from contextlib import suppress
from getpass import getuser
from typing import Annotated

import typer

from noetl.cli.client import find_execution_id, run_with_client
from noetl.cli.options import ID, AsJson, Step, refuse_empty_text
from noetl.cli.output import adapt_commands, say_row, warn
from noetl.cli.payloads import parse_plain_yaml
from noetl.cli.story import Story
from noetl.client.rows import Row, RowClient
from noetl.model.approvals import approval_name
from noetl.model.errors import NotFound
from noetl.model.ids import ExecutionId

SignalName = Annotated[
    str,
    typer.Argument(metavar="NAME", help="what a `wait` step waits for", callback=refuse_empty_text),
]


def signal(
    execution: ID,
    name: SignalName,
    payload: Annotated[
        str | None, typer.Option("--payload", metavar="YAML", help="what it brings; YAML or JSON")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Send a signal to an execution. It is kept until a `wait` of that name takes it.

    Example: noetl signal @latest approved --payload '{by: ada}'
    """
    value = parse_plain_yaml(payload, "--payload") if payload is not None else None

    async def work(client: RowClient) -> Row:
        execution_id = await find_execution_id(client, execution)
        await _warn_of_unknown_signal(client, execution_id, name)
        row = await client.send_signal(execution_id, name, value)
        warn_if_nobody_runs(client, execution_id)
        return row

    row = run_with_client(work, "change")
    sentence = f"signal {name} sent to execution {row['execution_id']}"
    say_row(row, sentence, as_json=as_json)


def warn_if_nobody_runs(client: RowClient, execution_id: ExecutionId) -> None:
    """Warn of an execution on this machine that only goes on when something runs it again."""
    if not client.has_server:
        hint = adapt_commands("noetl dev goes on with it, and so does any noetl run")
        warn(f"no server runs, so execution {execution_id} stays as it is for now", hint)


async def _warn_of_unknown_signal(client: RowClient, execution_id: ExecutionId, name: str) -> None:
    """Warn of a signal that no step waits for and the playbook does not contain: likely a typo."""
    row = await client.get_execution(execution_id)
    with suppress(NotFound):
        playbook = await client.get_playbook(row["path"], row["version"])
        if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", playbook["content"]):
            return
    story = await _read_story(client, execution_id)
    waits = [command.parked for command in story.state.commands.values() if command.parked]
    signals = [wait.signal for wait in waits if wait.signal]
    if name in signals:
        return
    warning = f"no step of {row['path']} waits for the signal {name!r}"
    if signals:
        warning += f"; it waits for {', '.join(signals)}"
    warn(warning)


By = Annotated[
    str | None,
    typer.Option("--by", metavar="WHO", help="who decides; default: the user of this machine"),
]
Comment = Annotated[str | None, typer.Option("--comment", metavar="TEXT", help="the reason")]


def approve(
    execution: ID,
    step: Step,
    by: By = None,
    comment: Comment = None,
    as_json: AsJson = False,
) -> None:
    """Approve what a step (`wait` with `approval`) waits for. The execution continues.

    Example: noetl exec approve @latest ask --comment 'looks good'
    """
    _send_approval(execution, step, True, by, comment, as_json)


def reject(
    execution: ID,
    step: Step,
    by: By = None,
    comment: Comment = None,
    as_json: AsJson = False,
) -> None:
    """Refuse what a step waits for: the step fails with REJECTED, which its router may handle.

    Example: noetl exec reject @latest ask --comment 'not on a Friday'
    """
    _send_approval(execution, step, False, by, comment, as_json)


def _send_approval(
    execution: str,
    step: str,
    approved: bool,
    by: str | None,
    comment: str | None,
    as_json: bool,
) -> None:
    who = by or getuser()

    async def work(client: RowClient) -> Row:
        execution_id = await find_execution_id(client, execution)
        # Raises if there is no such step: the signal would be kept and never taken.
        explained = await client.explain_step(execution_id, step)
        payload = {"approved": approved, "by": who, "comment": comment}
        row = await client.send_signal(execution_id, approval_name(step), payload)
        if not any(cause.get("on") == "approval" for cause in explained["causes"]):
            warn(f"step {step} waits for no approval now; this one is kept until it does")
        warn_if_nobody_runs(client, execution_id)
        return row

    row = run_with_client(work, "change")
    verdict = "approved" if approved else "rejected"
    sentence = f"step {step} of execution {row['execution_id']} is {verdict} by {who}"
    say_row(row, sentence, as_json=as_json)


async def _read_story(client: RowClient, execution_id: ExecutionId) -> Story:
    """The execution, folded from its events: the projection may lag behind them."""
    story = Story(execution_id)
    while page := await client.list_events(execution_id, story.last_seq):
        story.add_events(page)
    return story
