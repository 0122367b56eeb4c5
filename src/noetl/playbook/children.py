"""The children that a playbook names: which versions they ask for, and which are known before anything runs."""

from collections.abc import Iterator

from noetl.playbook.model import Playbook, PlaybookTask, Task
from noetl.playbook.templates import parse


def asks_latest(version: str | int | None) -> bool:
    """True when a call names no version of its own."""
    return version in (None, "latest", "")


def calls_children(playbook: Playbook) -> bool:
    return next(_child_tasks(playbook), None) is not None


def literal_children(playbook: Playbook) -> tuple[tuple[str, str | None], ...]:
    """Path and version (None: the latest) of every child that is named without a template."""
    found: dict[tuple[str, str | None], None] = {}
    for task in _child_tasks(playbook):
        version = None if asks_latest(task.version) else str(task.version)
        if parse(task.path).is_literal and parse(version or "").is_literal:
            found[task.path, version] = None
    return tuple(found)


def _child_tasks(playbook: Playbook) -> Iterator[PlaybookTask]:
    in_steps = (task for step in playbook.workflow for task in step.tool)
    in_workbook: Iterator[Task] = (named.tool for named in playbook.workbook)
    for tasks in (in_steps, in_workbook):
        for task in tasks:
            if isinstance(task, PlaybookTask):
                yield task
