"""The failure matrix of Spark steps, on one local Spark server: every cell ends as its table says.

Spark steps that lose their workers are in `tests/crash/test_lost_workers.py`.
"""

from collections.abc import Iterator

import pytest

from tests.e2e.conftest import StackClient, run_two_workers
from tests.e2e.matrix import check_cell, names_of, start_cell
from tests.failures import CELLS, FailureCell
from tests.spark import spark_url
from tests.waiting import HANG_LIMIT_S, until

__all__ = ["spark_url"]
HERE = [cell for cell in CELLS if cell.unit == "spark" and cell.how != "worker_lost"]


@pytest.fixture(scope="module")
def stack(spark_url: str) -> Iterator[StackClient]:
    with run_two_workers(NOETL_SPARK_PROFILE=spark_url) as running:
        yield running


@pytest.fixture(scope="module")
def executions(
    stack: StackClient, tmp_path_factory: pytest.TempPathFactory
) -> dict[FailureCell, str]:
    """All cells side by side. Those that are cancelled run by then."""
    folder = tmp_path_factory.mktemp("begun")
    begun = {cell: folder / cell.name for cell in HERE}
    started = {cell: start_cell(stack, cell, begun=str(begun[cell])) for cell in HERE}
    for cell in HERE:
        if cell.how == "cancelled":
            until(begun[cell].exists, HANG_LIMIT_S)
            stack.ask(started[cell], "cancel")
    return started


@pytest.mark.parametrize("cell", HERE, ids=names_of(HERE))
def test_spark_failure_ends_as_the_table_says(
    stack: StackClient, executions: dict[FailureCell, str], cell: FailureCell
) -> None:
    check_cell(stack, cell, executions[cell])
