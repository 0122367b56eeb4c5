"""`workbook`: a task written once in the playbook's workbook and called by name. It is resolved before a tool is chosen."""

from collections.abc import Mapping

from noetl.model.errors import Failure
from noetl.playbook.model import Task, WorkbookCall

DEEPEST = 8


def called(task: Task, workbook: Mapping[str, Task]) -> Task | Failure:
    """The task to run: the workbook's kind and fields under the caller's name; the caller's own words win."""
    found = task
    for _ in range(DEEPEST):
        if not isinstance(found, WorkbookCall):
            return found
        wanted = workbook.get(found.task)
        if wanted is None:
            return Failure(
                code="WORKBOOK_TASK_MISSING",
                kind="config",
                message=f"the workbook has no task {found.task!r}",
            )
        found = _under(found, wanted)
    return Failure(
        code="WORKBOOK_CYCLE",
        kind="config",
        message=f"workbook tasks call each other more than {DEEPEST} deep",
    )


def _under(caller: WorkbookCall, wanted: Task) -> Task:
    return wanted.model_copy(
        update={
            "name": caller.name,
            "input": {**wanted.input, **caller.input},
            "auth": wanted.auth if caller.auth is None else caller.auth,
            "timeout": wanted.timeout if caller.timeout is None else caller.timeout,
            "spec": caller.spec if caller.spec.model_fields_set else wanted.spec,
            "set": {**wanted.set, **caller.set},
            "provenance": {**wanted.provenance, **caller.provenance},
        }
    )
