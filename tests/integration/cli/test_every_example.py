"""Every file in examples/ is run and ends as its comment says. A new example needs a row here."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.stack import NoetlCommand

ROOT = Path(__file__).parents[3]


@dataclass(frozen=True)
class Run:
    """`failed` are steps with a handled failure, `left_out` steps that are not reached."""

    result: Any
    arguments: tuple[str, ...] = ()
    status: str = "completed"
    failed: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


RUNS = {
    "branches.yaml": Run("shipped", ("--set", "amount=50"), left_out=("check_credit",)),
    "fan_out.yaml": Run({"open": 18, "revenue": 2934, "best": 226, "failed": [9, 19]}),
    "hello.yaml": Run("HELLO, ADA!", ("--set", "name=Ada")),
    "loop.yaml": Run({"squares": 100, "total": 338350}, ("--set", "count=100")),
    "pipeline.yaml": Run(
        {"verdict": "many", "words": 8, "text": "the quick brown fox jumps over the lazy dog"}
    ),
    "retry.yaml": Run(None, failed=("hopeless",)),
    "shell.yaml": Run({"lines": 5, "last": "order 21 of O'Hara & Sons; echo $HOME"}),
}

# Examples that need a database, an API, another person or Spark: the test that runs each and checks its outcome.
HERE = "tests/integration/cli/test_examples.py"
ELSEWHERE = {
    "at_end.yaml": f"{HERE}::test_a_loop_that_fails_at_its_end_is_retried_where_it_failed",
    "approval.yaml": f"{HERE}::test_somebody_has_to_agree",
    "cursor_queue.yaml": f"{HERE}::test_a_table_is_worked_through_as_a_queue",
    "incremental.yaml": f"{HERE}::test_each_incremental_load_goes_on_where_the_last_one_stopped",
    "nested/month.yaml": f"{HERE}::test_children_are_executions_of_their_own",
    "nested/region.yaml": f"{HERE}::test_children_are_executions_of_their_own",
    "outside_tool/playbook.yml": "tests/integration/cli/test_outside_tool.py::"
    "test_with_the_package_it_is_known_checked_and_runs",
    "pagination.yaml": f"{HERE}::test_pages_of_an_api_go_into_a_table",
    "quantum/sweep.yaml": f"{HERE}::test_a_sweep_submits_each_job_once_though_answers_are_lost",
    "quickstart.yaml": f"{HERE}::test_the_first_one_ends_with_its_table",
    "recovered_failure.yaml": f"{HERE}::test_a_failure_that_is_handled_is_none",
    "rows.yaml": "tests/integration/cli/test_run.py::test_rows_keep_their_types_from_one_database_to_another",
    "spark.yaml": "tests/integration/spark/test_playbooks.py::test_the_example_runs_twice_and_gives_the_same",
    "spark_join.yaml": "tests/integration/spark/test_loops.py::test_an_example_joins_an_api_with_a_folder",
    "spark_loop.yaml": "tests/integration/spark/test_loops.py::test_an_example_grades_many_items",
    "spark_postgres.yaml": "tests/integration/spark/test_loops.py::test_an_example_goes_from_postgres_to_postgres",
    "tests/orders.yaml": "tests/unit/cli/test_testing.py::test_the_examples_pass",
}


def test_every_example_has_a_row() -> None:
    files = [*(ROOT / "examples").rglob("*.yaml"), *(ROOT / "examples").rglob("*.yml")]
    names = {
        str(file.relative_to(ROOT / "examples"))
        for file in files
        if not file.name.endswith(".test.yaml")
    }
    assert names == {*RUNS, *ELSEWHERE}


@pytest.mark.parametrize("place", sorted(set(ELSEWHERE.values())))
def test_a_test_that_runs_an_example_is_there(place: str) -> None:
    file, _, name = place.partition("::")
    assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8")


@pytest.mark.parametrize("example", sorted(RUNS))
def test_an_example_ends_as_it_says(noetl: NoetlCommand, example: str) -> None:
    expected = RUNS[example]
    said = noetl.json("run", "--memory", f"examples/{example}", *expected.arguments)
    assert (said["status"], said["result"]) == (expected.status, expected.result)
    steps = said["steps"]
    assert {name for name, step in steps.items() if step["status"] == "failed"} == set(
        expected.failed
    )
    assert not set(expected.left_out) & set(steps)
