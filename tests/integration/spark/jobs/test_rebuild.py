"""Projections against the log: what is stored, what it should be, and how it is mended."""

from functools import partial
from pathlib import Path

import psycopg
import pyarrow as pa
import pytest

from noetl.spark.jobs.event_files import stage_events
from noetl.spark.jobs.execution_map import ExecutionMap, LocalExecutionMap, SparkExecutionMap
from noetl.spark.jobs.folding import PROJECTIONS, fold_execution
from noetl.spark.jobs.lake import LakeStore
from noetl.spark.jobs.rebuild import RebuildJob, RowDifference, rebuild_rows, verify_rows
from noetl.spark.jobs.snapshot import open_snapshot
from tests.integration.spark.jobs.old_log import EXECUTIONS


def do(dsn: str, statement: str) -> str:
    with psycopg.connect(dsn) as connection:
        row = connection.execute(statement).fetchone()
        assert row is not None
        return str(row[0])


def fold_events(dsn: str, lake: LakeStore, runs: ExecutionMap, work: Path) -> pa.Table:
    work.mkdir()
    with open_snapshot(dsn) as log:
        files = stage_events(log, lake, work)
        made = list(
            runs.map_executions(partial(fold_execution, unreadable={}), PROJECTIONS, files, work)
        )
    return pa.concat_tables(made).sort_by("execution_id").combine_chunks()


def test_spark_and_this_process_fold_to_the_same_bytes(
    log: str, lake: LakeStore, tmp_path: Path, spark_url: str
) -> None:
    here = fold_events(log, lake, LocalExecutionMap(), tmp_path / "here")
    there = fold_events(log, lake, SparkExecutionMap(spark_url), tmp_path / "there")
    assert here.num_rows == EXECUTIONS
    assert here.schema == there.schema
    assert here.to_batches()[0].serialize() == there.to_batches()[0].serialize()


def test_a_sound_log_verifies(log: str, lake: LakeStore) -> None:
    assert list(verify_rows(RebuildJob(log, lake, LocalExecutionMap(), {}))) == []


@pytest.mark.corrupts
def test_an_event_that_is_recorded_twice_is_found(log: str, lake: LakeStore) -> None:
    execution_id, key = do(
        log,
        "with p as (select * from noetl.event_part order by execution_id, last_seq limit 1),"
        " s as (update noetl.execution_shard set last_seq = last_seq + 1 where shard_id = (select shard from p)"
        "       returning last_seq)"
        " insert into noetl.event_part select p.execution_id, s.last_seq, p.epoch, p.tenant, 1, p.shard, false,"
        "     json_build_array(p.events -> 1) from p, s returning execution_id || ' ' || (events -> 0 ->> 0)",
    ).split(" ")
    do(
        log,
        f"update noetl.execution set last_seq = 99999 where execution_id = {execution_id} returning 1",
    )
    found = list(verify_rows(RebuildJob(log, lake, LocalExecutionMap(), {})))
    assert RowDifference(execution_id, "event", f"{key} 2 times", "once") in found


@pytest.mark.corrupts
def test_planted_differences_are_found_named_and_mended(log: str, lake: LakeStore) -> None:
    oldest = "(select min(execution_id) from noetl.execution)"
    newest = "(select max(execution_id) from noetl.execution)"
    status = do(
        log,
        f"update noetl.execution set status = 'paused' where execution_id = {oldest} returning execution_id",
    )
    gone = do(
        log, f"delete from noetl.execution where execution_id = {newest} returning execution_id"
    )
    ahead = do(
        log,
        f"update noetl.execution set last_seq = 99999 where execution_id = {newest} returning execution_id",
    )
    job = RebuildJob(log, lake, LocalExecutionMap(), {})
    found = {
        (each.execution_id, each.field): (each.stored, each.folded) for each in verify_rows(job)
    }
    assert found.keys() == {(status, "status"), (gone, None), (ahead, "last_seq")}
    assert found[status, "status"] == ("paused", "completed")
    assert [each.field for each in verify_rows(job, int(status))] == ["status"]
    done = rebuild_rows(job)
    assert (done.executions, done.written) == (EXECUTIONS, 3)
    assert list(verify_rows(job)) == []


@pytest.mark.corrupts
def test_a_row_without_events_is_found(log: str, lake: LakeStore) -> None:
    made = do(
        log,
        "insert into noetl.execution (execution_id, shard, tenant, path, status, last_seq, started_at, updated_at, steps)"
        " values (5, 0, 1, 'p', 'running', 1, 0, 0, 0) returning execution_id",
    )
    assert [
        (each.execution_id, each.field)
        for each in verify_rows(RebuildJob(log, lake, LocalExecutionMap(), {}))
    ] == [(made, None)]


@pytest.mark.corrupts
def test_a_row_that_lags_is_no_difference(log: str, lake: LakeStore) -> None:
    newest = "execution_id = (select max(execution_id) from noetl.execution)"
    do(log, f"delete from noetl.execution where {newest} returning 1")
    do(log, "update noetl.checkpoint set seq = 0 returning 1")
    assert list(verify_rows(RebuildJob(log, lake, LocalExecutionMap(), {}))) == []
