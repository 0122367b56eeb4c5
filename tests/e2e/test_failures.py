"""The failure matrix on real processes: every cell ends as its table says, with the exit code of the command line.

Cells that lose their worker five times, and Spark steps, run in the simulator (`tests/simulation/workloads.py`).
"""

import msgspec
import pytest
import typer
import yaml

from noetl.cli.run import finish
from noetl.cli.story import Story
from noetl.engine.state import empty
from noetl.model.ids import ExecutionId
from tests.e2e.conftest import Stack
from tests.failures import CELLS, Cell, expected
from tests.waiting import until

HERE = [cell for cell in CELLS if cell.unit != "spark" and cell.how != "worker_lost"]
FROM_THE_COMMAND_LINE = [cell for cell in HERE if cell.unit == "step" and cell.how == "fails"]

FAILS = "raise ValueError('as asked')"
HANGS = "import time\ntime.sleep(600)"
OF_ITEM_ONE = "if item == 1:\n    "
ARCS = {
    "no_arc": None,
    "plain_arc": "last",
    "else_policy": "last",
    "guard_without_outcome": [{"step": "last", "when": "{{ workload.mode == 'full' }}"}],
    "guard_with_outcome": [{"step": "rescue", "when": "{{ output.status == 'error' }}"}, {"step": "last"}],
}


def task_of(cell: Cell) -> dict[str, object]:
    code = FAILS if cell.how.startswith("fails") else HANGS
    if cell.unit == "child":
        does: dict[str, object] = {"kind": "playbook", "path": child_path(cell)}
    elif cell.unit == "loop":
        only_one = OF_ITEM_ONE + code.replace("\n", "\n    ")
        does = {"kind": "python", "input": {"item": "{{ item }}"}, "code": only_one}
    else:
        does = {"kind": "python", "code": code}
    if cell.how == "times_out":
        does["timeout"] = "1s"
    rules: list[object] = []
    if cell.how == "fails_after_retries":
        again = {"do": "retry", "attempts": 2, "delay": "10ms"}
        rules.append({"when": "{{ output.status == 'error' }}", "then": again})
    if cell.handling == "else_policy":
        rules.append({"else": {"do": "continue"}})
    return {**does, "spec": {"policy": {"rules": rules}}} if rules else does


def child_path(cell: Cell) -> str:
    return f"matrix/child/{cell.name}"


def steps_of(cell: Cell) -> str:
    first: dict[str, object] = {"step": "s0", "tool": task_of(cell)}
    if cell.unit == "loop":
        first["loop"] = {"in": [0, 1, 2], "iterator": "item"}
    if ARCS[cell.handling] is not None:
        first["next"] = ARCS[cell.handling]
    noop = {"tool": {"kind": "noop"}}
    return yaml.safe_dump([first, {"step": "last", **noop}, {"step": "rescue", **noop}], sort_keys=False)


def started(stack: Stack, cell: Cell) -> str:
    if cell.unit == "child":
        code = FAILS if cell.how.startswith("fails") else HANGS
        stack.register(yaml.safe_dump([{"step": "c0", "tool": {"kind": "python", "code": code}}]), child_path(cell))
    path = stack.register(steps_of(cell), f"matrix/{cell.name}", workload={"mode": "full"})
    return stack.start(path)


def cancel(stack: Stack, cell: Cell, execution: str) -> None:
    """What the cell cancels, once it runs: the execution, or its child alone."""
    if cell.unit != "child":
        stack.comes(execution, "command.started")
        stack.ask(execution, "cancel")
        return
    until(lambda: stack.children(execution))
    child = stack.children(execution)[0]["execution_id"]
    stack.comes(child, "command.started")
    stack.ask(child, "cancel")


@pytest.fixture(scope="module")
def executions(stack: Stack) -> dict[Cell, str]:
    """All cells side by side."""
    begun = {cell: started(stack, cell) for cell in HERE}
    for cell in HERE:
        if cell.how == "cancelled":
            cancel(stack, cell, begun[cell])
    return begun


@pytest.mark.parametrize("cell", HERE, ids=[cell.name for cell in HERE])
def test_failure_ends_as_the_table_says(stack: Stack, executions: dict[Cell, str], cell: Cell) -> None:
    wanted = expected(cell)
    row = stack.ended(executions[cell])
    assert (row["status"], row["recovered"]) == (wanted.status, wanted.recovered), wanted.why
    assert sum(each["count"] for each in row["recoveries"]) == wanted.recovered
    assert exit_code(row) == wanted.exit_code


def exit_code(row: dict[str, object]) -> int:
    """As the command line ends after such an execution."""
    story = Story(ExecutionId(str(row["execution_id"])))
    story.state = msgspec.structs.replace(empty(str(row["execution_id"])), status=str(row["status"]))
    with pytest.raises(typer.Exit) as ended:
        finish(story, as_json=True)
    return ended.value.exit_code


@pytest.mark.parametrize("cell", FROM_THE_COMMAND_LINE, ids=[cell.name for cell in FROM_THE_COMMAND_LINE])
def test_command_line_ends_as_the_table_says(stack: Stack, executions: dict[Cell, str], cell: Cell) -> None:
    wanted = expected(cell)
    done = stack.noetl("run", f"matrix/{cell.name}", "--json")
    assert (done.code, done.json["status"], done.json["recovered"]) == (
        wanted.exit_code,
        wanted.status,
        wanted.recovered,
    ), wanted.why
    listed = stack.noetl("exec", "list", "--path", f"matrix/{cell.name}").out
    assert ("recovered: 1" in listed) == (wanted.recovered == 1)
