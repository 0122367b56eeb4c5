"""`workbook`: a call by name of a task in the playbook's workbook.

The pipeline replaces the call by the task before it chooses a tool.
"""

from collections.abc import Mapping
from typing import Any

from noetl.model.errors import Failure
from noetl.playbook.model import Task, WorkbookCall

MAX_WORKBOOK_DEPTH = 8


def resolve_workbook_call(task: Task, workbook: Mapping[str, Task]) -> Task | Failure:
    """The task to run: the workbook's kind and fields with the caller's name.

    The caller's fields win.
    """
    for _ in range(MAX_WORKBOOK_DEPTH):
        if not isinstance(task, WorkbookCall):
            return task
        workbook_task = workbook.get(task.task)
        if workbook_task is None:
            message = f"the workbook has no task {task.task!r}"
            return Failure(code="WORKBOOK_TASK_MISSING", kind="config", message=message)
        task = _merge_into_task(task, workbook_task)
    message = f"workbook tasks call each other more than {MAX_WORKBOOK_DEPTH} deep"
    return Failure(code="WORKBOOK_CYCLE", kind="config", message=message)


def _merge_into_task(caller: WorkbookCall, task: Task) -> Task:
    """The workbook's task with the fields that the caller sets."""
    changes: dict[str, Any] = {
        "name": caller.name,
        "input": {**task.input, **caller.input},
        "set": {**task.set, **caller.set},
        "provenance": {**task.provenance, **caller.provenance},
    }
    if caller.auth is not None:
        changes["auth"] = caller.auth
    if caller.timeout is not None:
        changes["timeout"] = caller.timeout
    if caller.spec.model_fields_set:
        changes["spec"] = caller.spec
    return task.model_copy(update=changes)
