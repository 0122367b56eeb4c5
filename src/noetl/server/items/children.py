"""Finds the executions that items of a loop have started."""

from noetl.engine.state import PinnedPlaybook
from noetl.log.events.port import EventLog
from noetl.model.ids import CommandId, ExecutionId, Tenant, call_id
from noetl.model.reference import parse_uri
from noetl.server.items.inputs import find_command_id
from noetl.server.items.scan import FoundRow

CHILD_KIND = "playbook"
MAX_LISTED_CHILDREN = 10  # of one item

CommandsByCall = dict[str, CommandId]


async def find_item_children(
    log: EventLog, tenant: Tenant, fixed: PinnedPlaybook, step: str, found: list[FoundRow]
) -> dict[CommandId, list[ExecutionId]]:
    """The children of these items by command, in the order of their starts."""
    planned = fixed.plan.steps.get(step)
    tasks = (
        []
        if planned is None
        else [task.name for task in planned.step.tool if task.kind == CHILD_KIND]
    )
    by_command: dict[CommandId, list[ExecutionId]] = {}
    for parent, calls in _list_calls(tasks, found).items():
        children = await log.find_children(tenant, parent, list(calls))
        for call, child in children.items():
            by_command.setdefault(calls[call], []).append(child)
    return {
        command: sorted(each, key=int)[:MAX_LISTED_CHILDREN] for command, each in by_command.items()
    }


def _list_calls(tasks: list[str], found: list[FoundRow]) -> dict[ExecutionId, CommandsByCall]:
    """The calls that these items may have made, by the execution that ran them.

    Only an item with a command of its own can start a child. The id of the call follows from the
    command, the task, and the number of tries that failed before it.
    """
    calls: dict[ExecutionId, CommandsByCall] = {}
    for row in found:
        command = find_command_id(row)
        if command is None or row.part.count > 1:
            continue
        parent = parse_uri(row.part.reference.uri).execution_id
        tries = min(row.row.get("tries") or 1, MAX_LISTED_CHILDREN)
        for task in tasks:
            ids = [call_id(command, task, 1, tried) for tried in range(tries)]
            calls.setdefault(parent, {}).update(dict.fromkeys(ids, command))
    return calls
