"""What executions did in a period, counted; and the same wherever the events are and wherever it runs."""

from typing import Any

from bench.grown_log import PAYLOAD
from noetl.spark.jobs.compact import compact_log
from noetl.spark.jobs.execution_map import ExecutionMap, LocalExecutionMap, SparkExecutionMap
from noetl.spark.jobs.lake import LakeStore
from noetl.spark.jobs.stats import compute_stats
from tests.integration.spark.jobs.old_log import DAY, EXECUTIONS
from tests.integration.spark.jobs.test_compact import now


def count_events(
    log: str, lake: LakeStore, runs: ExecutionMap | None = None
) -> list[dict[str, Any]]:
    return compute_stats(log, lake, runs or LocalExecutionMap(), now() - 41 * DAY, now())


def test_steps_and_executions_are_counted_by_playbook(log: str, lake: LakeStore) -> None:
    found = {(row["path"], row["step"]): row for row in count_events(log, lake)}
    each = EXECUTIONS // 5
    chain, failing, handled = (
        found["flows/chain", None],
        found["flows/failing", None],
        found["flows/handled", "s0"],
    )
    assert (chain["runs"], chain["failures"]) == (each, 0)
    assert (failing["runs"], failing["failures"]) == (each, each)
    assert (handled["runs"], handled["failures"]) == (each, each)
    assert found["flows/chain", "s0"]["bytes"] == each * len(PAYLOAD)
    assert 0 < chain["p50"] <= chain["p95"] <= chain["p99"] <= chain["longest"]
    assert chain["bytes"] == sum(
        row["bytes"] for (path, step), row in found.items() if path == "flows/chain" and step
    )


def test_a_period_has_those_that_began_in_it(log: str, lake: LakeStore) -> None:
    assert compute_stats(log, lake, LocalExecutionMap(), now() - 30 * DAY, now()) == []
    half = compute_stats(
        log, lake, LocalExecutionMap(), now() - 41 * DAY, now() - 37 * DAY - DAY // 2
    )
    runs = sum(row["runs"] for row in half if row["step"] is None)
    assert 0 < runs < EXECUTIONS
    compact_log(log, lake, now())
    assert compute_stats(log, lake, LocalExecutionMap(), now() - 30 * DAY, now()) == []


def test_it_is_the_same_on_spark_and_from_files(log: str, lake: LakeStore, spark_url: str) -> None:
    before = count_events(log, lake)
    assert count_events(log, lake, SparkExecutionMap(spark_url)) == before
    compact_log(log, lake, now())
    assert count_events(log, lake) == before
