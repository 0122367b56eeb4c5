"""What an execution waits for that a person can give, with the commands that give it."""

import shlex
import sys
from collections.abc import Iterator
from typing import NamedTuple

from noetl.cli.output import adapt_commands
from noetl.client.rows import Row
from noetl.engine.state import Execution
from noetl.model.approvals import describe_question
from noetl.model.ids import ExecutionId
from noetl.runtime.running_servers import find_server_address

PERSON_REASONS = ("approval", "signal")


class PersonWait(NamedTuple):
    """A step that waits for an approval or a signal. `name` is that of the signal, `asked` what the
    approval asks."""

    step: str
    reason: str
    name: str | None
    asked: str = ""

    @property
    def sentence(self) -> str:
        if self.reason == "approval":
            asked = f" ({self.asked})" if self.asked else ""
            return f"step {self.step} waits for an approval{asked}"
        return f"step {self.step} waits for the signal {self.name}"


def list_state_waits(state: Execution) -> list[PersonWait]:
    """The waits of an execution, as its events say. Items of a loop that wait alike are one wait,
    with the question of the first."""
    waits: dict[tuple[str, str | None], PersonWait] = {}
    for command in state.commands.values():
        parked = command.parked
        if parked is None or parked.ready or parked.reason not in PERSON_REASONS:
            continue
        asked = describe_question(parked.question)
        wait = PersonWait(command.step, parked.reason, parked.signal, asked)
        waits.setdefault((command.step, parked.signal), wait)
    return list(waits.values())


def list_page_waits(page: Row) -> list[PersonWait]:
    """The waits of an execution, as its page says."""
    waits: list[PersonWait] = []
    for name, step in page["steps"].items():
        wait = step["waits"]
        if wait is not None and wait["on"] in PERSON_REASONS:
            asked = describe_question(wait["question"])
            waits.append(PersonWait(name, wait["on"], wait["name"], asked))
    return waits


def list_wait_lines(execution_id: ExecutionId, wait: PersonWait) -> Iterator[str]:
    """What waits, the commands that answer, and the page on which a person can answer."""
    yield f"{wait.sentence}: {adapt_commands(_suggest_answer(execution_id, wait))}"
    address = find_server_address()
    if address is None:
        yield adapt_commands(f"in a browser: noetl ui {execution_id}")
    else:
        yield f"in a browser: {address}/executions/{execution_id}"


def _suggest_answer(execution_id: ExecutionId, wait: PersonWait) -> str:
    if wait.reason == "approval":
        place = f"{execution_id} {shlex.quote(wait.step)}"
        return f"noetl exec approve {place} gives it, noetl exec reject {place} refuses it"
    return f"noetl signal {execution_id} {shlex.quote(wait.name or '')} sends it"


def say_wait(execution_id: ExecutionId, wait: PersonWait) -> None:
    """Tell a person who follows the execution. On stderr, because programs read stdout."""
    for line in list_wait_lines(execution_id, wait):
        print(line, file=sys.stderr)


def say_unanswerable_wait(execution_id: ExecutionId, wait: PersonWait) -> None:
    """The same for an execution in memory, which no other process can reach."""
    print(
        f"{wait.sentence}, and nobody can answer with --memory: run it without; Ctrl-C ends it",
        file=sys.stderr,
    )
