"""A cell of the failure matrix as a playbook, and what its execution must look like. See `tests/failures.py`."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
import typer
import yaml

from noetl.cli.following import finish_command
from noetl.cli.story import Story
from noetl.engine.state import make_empty_execution
from noetl.model.ids import ExecutionId
from tests.e2e.conftest import StackClient
from tests.failures import FailureCell, find_expected

FAILS = "raise ValueError('as asked')"
HANGS = "import time\ntime.sleep(600)"
# The worker starts the fork server, and the fork server starts the processes of tools. The worker
# may be dead already: another command of this kind may have run beside this one.
KILLS_ITS_WORKER = """\
import os, signal, time
with open(f"/proc/{os.getppid()}/stat") as file:
    worker = int(file.read().rpartition(")")[2].split()[1])
with open(f"/proc/{worker}/cmdline") as file:
    assert "tests.stack" in file.read()
os.kill(worker, signal.SIGKILL)
time.sleep(60)
"""
CODE = {
    "fails": FAILS,
    "fails_after_retries": FAILS,
    "times_out": HANGS,
    "cancelled": HANGS,
    "worker_lost": KILLS_ITS_WORKER,
}
ERROR_CODE = {
    "fails": "PYTHON_ERROR",
    "fails_after_retries": "PYTHON_ERROR",
    "times_out": "TIMEOUT",
    "worker_lost": "WORKER_LOST",
}
FAILING_SQL = "select nowhere from range(3)"
USES_SPARK = "spark.range(3).count()\nif begun:\n    open(begun, 'x').close()\n"
ARCS: dict[str, Any] = {
    "no_arc": None,
    "plain_arc": "last",
    "else_policy": "last",
    "guard_without_outcome": [{"step": "last", "when": "{{ workload.mode == 'full' }}"}],
    "guard_with_outcome": [
        {"step": "rescue", "when": "{{ output.status == 'error' }}"},
        {"step": "last"},
    ],
}


def names_of(cells: Sequence[FailureCell]) -> list[str]:
    return [cell.name for cell in cells]


def start_cell(stack: StackClient, cell: FailureCell, begun: str = "") -> str:
    """The id of its execution. A Spark step that runs creates the file `begun`."""
    if cell.unit == "child":
        child = [{"step": "c0", "tool": {"kind": "python", "code": CODE[cell.how]}}]
        stack.register(yaml.safe_dump(child), child_path(cell))
    path = stack.register(steps_of(cell), cell_path(cell), workload={"mode": "full", "begun": ""})
    return stack.start(path, begun=begun)


def check_cell(stack: StackClient, cell: FailureCell, execution: str) -> None:
    """It has ended as the table says, and for the reason that the cell is about."""
    wanted = find_expected(cell)
    row = stack.wait_for_end(execution)
    about = f"{cell.name}: {wanted.why}"
    assert (row["status"], row["recovered"]) == (wanted.status, wanted.recovered), about
    assert sum(each["count"] for each in row["recoveries"]) == wanted.recovered, about
    assert exit_code(row) == wanted.exit_code, about
    assert failure_code(stack, row) == expected_code(cell), about


def expected_code(cell: FailureCell) -> str | None:
    """Of the failure that ends the execution, or that it recovers from."""
    if cell.how == "cancelled":
        return "CHILD_CANCELLED" if cell.unit == "child" else None
    item_is_recovered = cell.handling == "else_policy" and find_expected(cell).recovered > 0
    if cell.unit == "loop" and not item_is_recovered:
        return "LOOP_FAILED"
    if cell.unit == "child" and cell.how != "times_out":
        return "CHILD_FAILED"
    if cell.unit == "spark" and cell.how in ("fails", "fails_after_retries"):
        return "SPARK_ERROR"
    return ERROR_CODE[cell.how]


def failure_code(stack: StackClient, row: dict[str, Any]) -> str | None:
    codes = [each["code"] for each in row["recoveries"]]
    codes += [
        event["data"]["error"]["code"]
        for event in stack.events(row["execution_id"], "playbook.failed")
    ]
    assert len(codes) <= 1
    return codes[0] if codes else None


def exit_code(row: dict[str, Any]) -> int:
    """As the command line ends after such an execution."""
    story = Story(ExecutionId(row["execution_id"]))
    story.state = msgspec.structs.replace(
        make_empty_execution(row["execution_id"]), status=row["status"]
    )
    with pytest.raises(typer.Exit) as ended:
        finish_command(story, as_json=True)
    return ended.value.exit_code


# ---- the playbook ------------------------------------------------------------------------------------------------------


def cell_path(cell: FailureCell) -> str:
    return f"matrix/{cell.name}"


def child_path(cell: FailureCell) -> str:
    return f"matrix/child/{cell.name}"


def steps_of(cell: FailureCell) -> str:
    first: dict[str, Any] = {"step": "s0", "tool": task_of(cell)}
    if cell.unit == "loop":
        first["loop"] = {"in": [0, 1, 2], "iterator": "item"}
    if ARCS[cell.handling] is not None:
        first["next"] = ARCS[cell.handling]
    noop = {"tool": {"kind": "noop"}}
    return yaml.safe_dump(
        [first, {"step": "last", **noop}, {"step": "rescue", **noop}], sort_keys=False
    )


def task_of(cell: FailureCell) -> dict[str, Any]:
    task = tool_of(cell)
    if cell.how == "times_out":
        task["timeout"] = (
            "5s" if cell.unit == "spark" else "1s"
        )  # a client of Spark needs a second or two to connect
    rules: list[Any] = []
    if cell.how == "fails_after_retries":
        again = {"do": "retry", "attempts": 2, "delay": "10ms"}
        rules.append({"when": "{{ output.status == 'error' }}", "then": again})
    if cell.handling == "else_policy":
        rules.append({"else": {"do": "continue"}})
    return {**task, "spec": {"policy": {"rules": rules}}} if rules else task


def tool_of(cell: FailureCell) -> dict[str, Any]:
    code = CODE[cell.how]
    if cell.unit == "child":
        return {"kind": "playbook", "path": child_path(cell)}
    if cell.unit == "loop":
        only_item_one = "if item == 1:\n    " + code.replace("\n", "\n    ")
        return {"kind": "python", "input": {"item": "{{ item }}"}, "code": only_item_one}
    if cell.unit == "step":
        return {"kind": "python", "code": code}
    if code == FAILS:
        return {"kind": "spark", "sql": FAILING_SQL}
    return {"kind": "spark", "input": {"begun": "{{ workload.begun }}"}, "code": USES_SPARK + code}
