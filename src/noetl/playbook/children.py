"""The child playbooks that a playbook calls, and which of them are known before it runs."""

from collections.abc import Iterator

from noetl.playbook.model import Playbook, PlaybookTask, Task
from noetl.template.parsing import parse


def asks_latest(version: str | int | None) -> bool:
    """Whether a call names no fixed version."""
    return version in (None, "latest", "")


def calls_children(playbook: Playbook) -> bool:
    return next(_child_tasks(playbook), None) is not None


def literal_children(playbook: Playbook) -> tuple[tuple[str, str | None], ...]:
    """Return path and version (None: latest) of every child that is named without a template."""
    children: dict[tuple[str, str | None], None] = {}  # a dict keeps the order
    for task in _child_tasks(playbook):
        version = None if asks_latest(task.version) else str(task.version)
        if parse(task.path).is_literal and parse(version or "").is_literal:
            children[task.path, version] = None
    return tuple(children)


def _child_tasks(playbook: Playbook) -> Iterator[PlaybookTask]:
    tasks: list[Task] = []
    for step in playbook.workflow:
        tasks += step.tool
    tasks += [entry.tool for entry in playbook.workbook]
    for task in tasks:
        if isinstance(task, PlaybookTask):
            yield task
