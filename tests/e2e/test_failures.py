"""The failure matrix on real processes: every cell ends as its table says, with the exit code of the command line.

Spark steps are in `test_spark_failures.py`, commands that lose their workers in `tests/crash/test_lost_workers.py`.
"""

import pytest

from tests.e2e.conftest import StackClient
from tests.e2e.matrix import cell_path, check_cell, names_of, start_cell
from tests.failures import CELLS, FailureCell, find_expected
from tests.waiting import until

HERE = [cell for cell in CELLS if cell.unit != "spark" and cell.how != "worker_lost"]
FROM_THE_COMMAND_LINE = [cell for cell in HERE if cell.unit == "step" and cell.how == "fails"]


@pytest.fixture(scope="module")
def executions(stack: StackClient) -> dict[FailureCell, str]:
    """All cells side by side."""
    begun = {cell: start_cell(stack, cell) for cell in HERE}
    for cell in HERE:
        if cell.how == "cancelled":
            cancel(stack, cell, begun[cell])
    return begun


def cancel(stack: StackClient, cell: FailureCell, execution: str) -> None:
    """What the cell cancels, once it runs: the execution, or its child alone."""
    if cell.unit != "child":
        stack.comes(execution, "command.started")
        stack.ask(execution, "cancel")
        return
    until(lambda: stack.children(execution))
    child = stack.children(execution)[0]["execution_id"]
    stack.comes(child, "command.started")
    stack.ask(child, "cancel")


@pytest.mark.parametrize("cell", HERE, ids=names_of(HERE))
def test_failure_ends_as_the_table_says(
    stack: StackClient, executions: dict[FailureCell, str], cell: FailureCell
) -> None:
    check_cell(stack, cell, executions[cell])


@pytest.mark.parametrize("cell", FROM_THE_COMMAND_LINE, ids=names_of(FROM_THE_COMMAND_LINE))
def test_command_line_ends_as_the_table_says(
    stack: StackClient, executions: dict[FailureCell, str], cell: FailureCell
) -> None:
    wanted = find_expected(cell)
    done = stack.noetl("run", cell_path(cell), "--json")
    assert (done.code, done.json["status"], done.json["recovered"]) == (
        wanted.exit_code,
        wanted.status,
        wanted.recovered,
    ), wanted.why
    listed = stack.noetl("exec", "list", "--path", cell_path(cell)).out
    assert ("recovered: 1" in listed) == (wanted.recovered == 1)
