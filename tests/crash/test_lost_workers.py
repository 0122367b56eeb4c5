"""The failure matrix of commands that kill every worker that runs them: after five lost leases each cell ends as its table says.

All cells run side by side, and a worker that died is started again at once. Until every cell has lost two workers, one worker
has them all, so a death counts for many. From then on no two of them share a worker, so there are several workers.
"""

from collections.abc import Sequence

import psycopg
import pytest

from noetl.model.commands import MAX_LOST_LEASES, SUSPECT_LOST_LEASES
from tests.crash.stack import run_crash_stack
from tests.e2e.conftest import StackClient, open_stack_client
from tests.e2e.matrix import check_cell, start_cell
from tests.failures import CELLS, FailureCell
from tests.postgres import server
from tests.spark import spark_url
from tests.stack import Stack
from tests.waiting import HANG_LIMIT_S, until

__all__ = ["spark_url"]
MAX_WORKERS = 6
LOOK_INTERVAL_S = 0.1
SHORT = [
    FailureCell("step", "worker_lost", "plain_arc"),
    FailureCell("step", "worker_lost", "guard_with_outcome"),
    FailureCell("loop", "worker_lost", "guard_with_outcome"),
    FailureCell("child", "worker_lost", "else_policy"),
    FailureCell("spark", "worker_lost", "no_arc"),
]


def test_each_kind_of_step_that_loses_its_workers_ends_as_the_table_says(spark_url: str) -> None:
    lose_workers(SHORT, spark_url)


@pytest.mark.long
def test_every_cell_that_loses_its_workers_ends_as_the_table_says(spark_url: str) -> None:
    lose_workers([cell for cell in CELLS if cell.how == "worker_lost"], spark_url)


def lose_workers(cells: Sequence[FailureCell], spark_profile: str) -> None:
    with (
        server().database() as dsn,
        run_crash_stack(dsn, workers=0, NOETL_SPARK_PROFILE=spark_profile) as here,
    ):
        here.wait_until_ready()
        with open_stack_client(here) as stack:
            started = {cell: start_cell(stack, cell) for cell in cells}
            here.start_worker()
            supervise_until_suspect(here, dsn, len(cells))
            for _ in range(min(MAX_WORKERS, len(cells)) - 1):
                here.start_worker()
            supervise_until_ended(here, stack, list(started.values()))
            for cell, execution in started.items():
                check_cell(stack, cell, execution)
                check_lost_leases(stack, cell, execution)
        kill_workers(here)


def supervise_until_suspect(here: Stack, dsn: str, count: int) -> None:
    """Until so many commands have lost so many leases that they share no worker."""
    with psycopg.connect(dsn, autocommit=True) as connection:

        def are_suspect() -> bool:
            here.restart_dead()
            found = connection.execute(
                "select count(*) from noetl.command where lost >= %s", [SUSPECT_LOST_LEASES]
            ).fetchone()
            return found is not None and found[0] >= count

        until(are_suspect, 2 * HANG_LIMIT_S, LOOK_INTERVAL_S)


def supervise_until_ended(here: Stack, stack: StackClient, executions: list[str]) -> None:
    def have_ended() -> bool:
        here.restart_dead()
        while executions and stack.get(f"/api/executions/{executions[-1]}/status")["ended"]:
            executions.pop()
        return not executions

    until(have_ended, 2 * HANG_LIMIT_S, LOOK_INTERVAL_S)


def check_lost_leases(stack: StackClient, cell: FailureCell, execution: str) -> None:
    """One command is dead, for five lost leases: that of the child if the cell has one."""
    where = stack.children(execution)[0]["execution_id"] if cell.unit == "child" else execution
    dead = stack.events(where, "command.dead")
    assert [event["data"]["attempt"] for event in dead] == [MAX_LOST_LEASES], cell.name


def kill_workers(here: Stack) -> None:
    """One that is still starting could not end in order."""
    for worker in here.workers:
        worker.kill()
