"""Events moved to files: nothing lost, nothing doubled, everything still answered."""

import asyncio
import sys
import time
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeVar

import psycopg
import pytest

from noetl import faults
from noetl.catalog.memory import CatalogMemory
from noetl.engine.rewinding import RewoundExecution
from noetl.log.events.port import (
    AppendBatch,
    Appended,
    EventName,
    ExecutionPart,
    Known,
    RecordedEvent,
)
from noetl.log.postgres import make_postgres_stores
from noetl.log.stores import Stores
from noetl.model.errors import Conflict, StoreUnavailable
from noetl.model.event_groups import GROUP_BITS, find_groups
from noetl.model.events import StepEnter, WorkflowInitialized
from noetl.model.exchange import LEASE_MICROS
from noetl.model.ids import DEFAULT_TENANT, ExecutionId, shard_of
from noetl.model.messages import Cancel
from noetl.postgres.pool import Database
from noetl.server.dispatch.playbooks import Playbooks
from noetl.server.dispatch.shards import OwnedShards
from noetl.server.dispatch.states import States
from noetl.server.executions.rows import RowCache
from noetl.server.health.service import check_history
from noetl.server.inspection.folds import ExecutionFolds
from noetl.spark.jobs import compact as compactor
from noetl.spark.jobs.compact import CompactionCounts, CompactionMismatch, compact_log
from noetl.spark.jobs.execution_map import LocalExecutionMap
from noetl.spark.jobs.export import ExportCounts, export_log
from noetl.spark.jobs.lake import LakeStore
from noetl.spark.jobs.query import open_query
from noetl.spark.jobs.rebuild import RebuildJob, verify_rows
from tests.integration.spark.jobs.old_log import (
    DAY,
    EXECUTIONS,
    LAKES,
    Died,
    empty_lake_like,
    fill,
    kill_job,
    new_lake,
    staging_entries,
)
from tests.integration.spark.jobs.test_export import list_exported, list_recorded
from tests.play import plan_of, workflow
from tests.postgres import server

SHARDS = 4
T = TypeVar("T")
POINTS = [point for point in faults.JOB_FAULT_POINTS if point.startswith("compact.")]


def now() -> int:
    return time.time_ns() // 1_000


def with_log(
    dsn: str, lake: LakeStore | None, work: Callable[[Stores], Coroutine[Any, Any, T]]
) -> T:
    async def run() -> T:
        async with Database(dsn, main_size=2, background_size=1) as database:
            return await work(make_postgres_stores(database, SHARDS, lake=lake))

    return asyncio.run(run())


def ids(dsn: str) -> list[ExecutionId]:
    with psycopg.connect(dsn) as connection:
        rows = connection.execute("select execution_id from noetl.execution order by 1").fetchall()
        return [ExecutionId(str(row[0])) for row in rows]


def all_events(dsn: str, lake: LakeStore) -> dict[ExecutionId, list[RecordedEvent]]:
    """As the log tells them, wherever they are."""

    async def work(stores: Stores) -> dict[ExecutionId, list[RecordedEvent]]:
        return {each: await stores.log.read_events(each) for each in ids(dsn)}

    return with_log(dsn, lake, work)


def partitions(dsn: str) -> set[str]:
    with psycopg.connect(dsn) as connection:
        rows = connection.execute(
            "select c.relname from pg_inherits i join pg_class c on c.oid = i.inhrelid"
            " where inhparent = 'noetl.event_part'::regclass"
        )
        return {name for (name,) in rows}


def test_every_event_is_still_told_and_the_partition_is_gone(log: str, lake: LakeStore) -> None:
    before, counted = all_events(log, lake), len(list_recorded(log))
    assert "event_past" in partitions(log)
    assert compact_log(log, lake, now()) == CompactionCounts(EXECUTIONS, counted, 1, 1)
    assert list_recorded(log) == []
    assert "event_past" not in partitions(log)
    assert all_events(log, lake) == before
    assert list(verify_rows(RebuildJob(log, lake, LocalExecutionMap(), {}))) == []
    assert list(verify_rows(RebuildJob(log, lake, LocalExecutionMap(), {}), int(ids(log)[0]))) == []
    assert compact_log(log, lake, now()) == CompactionCounts()


def test_reads_of_one_execution_find_it_in_its_file(log: str, lake: LakeStore) -> None:
    one = ids(log)[3]
    events = all_events(log, lake)[one]
    compact_log(log, lake, now())

    async def work(stores: Stores) -> None:
        assert await stores.log.read_events(one, events[2].seq, 2) == events[3:5]
        assert await stores.log.read_events(one, events[-1].seq) == []
        assert await stores.log.read_last_seq(one) == events[-1].seq
        names = [EventName(one, each.event.key) for each in events[:3]]
        assert (
            sorted(
                await stores.log.read_named_events([*names, EventName(one, "no")]),
                key=lambda each: each.seq,
            )
            == events[:3]
        )
        assert await stores.payloads.find_orphans(
            DEFAULT_TENANT, one, ["noetl://execution/1/result/a/b"]
        ) == ["noetl://execution/1/result/a/b"]

    with_log(log, lake, work)


def test_pages_and_states_of_one_execution_are_read_from_its_file(
    log: str, lake: LakeStore
) -> None:
    one = ids(log)[3]
    events = all_events(log, lake)[one]
    seqs = [each.seq for each in events]
    middle = seqs[len(seqs) // 2]

    async def read(stores: Stores) -> list[Any]:
        folds = ExecutionFolds(stores.log, stores.snapshots)
        newest = await folds.read_newest(one)
        then = await folds.read_at(one, middle)
        life = GROUP_BITS["life"]
        grouped = await stores.log.read_grouped_events(one, life, limit=100)
        earlier = await stores.log.read_grouped_events(one, life, before=seqs[-1], limit=100)
        return [
            (newest.state, newest.bands, newest.seq),
            (then.state, then.bands, then.seq),
            await folds.find_numbers(one, seqs[1:4]),
            await stores.log.read_events_before(one, middle, 3),
            await stores.log.read_events_between(one, seqs[1], middle, 100),
            await stores.log.count_events(one, [(0, middle), (middle, seqs[-1])]),
            [each for each in grouped if find_groups(each.event) & life],
            [each for each in earlier if find_groups(each.event) & life],
        ]

    before = with_log(log, lake, read)
    assert before[2] == [2, 3, 4]
    compact_log(log, lake, now())
    assert with_log(log, lake, read) == before


def test_a_compacted_execution_can_be_rewound_to_a_step_and_one_whose_events_are_away_is_refused(
    log: str, lake: LakeStore, tmp_path: Path
) -> None:
    one = ids(log)[3]
    entered = [
        each.event for each in all_events(log, lake)[one] if isinstance(each.event, StepEnter)
    ]
    names = [event.step for event in entered]
    arcs = [f"next: {name}" for name in names[1:]] + ["spec: {}"]
    chain = "".join(
        f"- {{step: {name}, tool: {{kind: noop}}, {arc}}}\n"
        for name, arc in zip(names, arcs, strict=True)
    )
    plan = plan_of(workflow(chain))

    async def rewound(stores: Stores) -> RewoundExecution | None:
        rows = RowCache(stores.projections, OwnedShards(1), 0)
        states = States(stores.log, rows, Playbooks(CatalogMemory(), 1), 1)
        return await states.rewind_execution(one, names[2], plan)

    before = with_log(log, lake, rewound)
    assert before is not None
    assert (before.run, before.entered_at) == (1, entered[2].at)
    assert set(before.state.steps) == set(names[:2])
    compact_log(log, lake, now())
    assert with_log(log, lake, rewound) == before
    with pytest.raises(
        Conflict, match="cannot be rerun from a step, because its events cannot be read"
    ):
        with_log(log, empty_lake_like(lake, tmp_path / "elsewhere"), rewound)


def test_a_lake_that_is_away_is_said(log: str, lake: LakeStore, tmp_path: Path) -> None:
    compact_log(log, lake, now())
    elsewhere = empty_lake_like(lake, tmp_path / "elsewhere")
    with pytest.raises(StoreUnavailable, match="cannot be read"):
        all_events(log, elsewhere)

    async def check_reached(stores: Stores) -> None:
        assert await check_history(stores.log) == "ok"

    async def away(stores: Stores) -> None:
        assert "files of compacted history cannot be read here (cold/" in await check_history(
            stores.log
        )

    with_log(log, lake, check_reached)
    with_log(log, elsewhere, away)


@pytest.mark.parametrize("point", POINTS)
def test_a_death_at_any_point_loses_and_doubles_nothing(
    log: str, lake: LakeStore, point: str
) -> None:
    before, counted = all_events(log, lake), list_recorded(log)
    kill_job("compact", point, log, lake)
    assert all_events(log, lake) == before
    compact_log(log, lake, now())
    assert all_events(log, lake) == before
    one_file(log, lake, len(counted))


def one_file(log: str, lake: LakeStore, events: int) -> None:
    """With everything, and nothing is left on the way."""
    with psycopg.connect(log) as connection:
        row = connection.execute("select count(*), sum(events) from noetl.cold_file").fetchone()
    assert row == (1, events)
    assert len(lake.list_files("cold/")) == 1
    assert not staging_entries(lake)


@pytest.mark.long
@pytest.mark.parametrize("kind", LAKES)
def test_a_death_at_any_line_loses_and_doubles_nothing(tmp_path: Path, kind: str) -> None:
    lines: list[int] = []
    with new_log() as log:
        trace_lines(
            lambda line: lines.append(line),
            lambda: compact_log(log, new_lake(kind, tmp_path / "all"), now()),
        )
    assert len(set(lines)) > 50
    for line in sorted(set(lines)):
        lake = new_lake(kind, tmp_path / str(line))
        with new_log() as log:
            before, counted = all_events(log, lake), len(list_recorded(log))
            with pytest.raises(Died):
                trace_lines(
                    lambda here, line=line: die(here == line),
                    lambda log=log, lake=lake: compact_log(log, lake, now()),
                )
            assert all_events(log, lake) == before, line
            compact_log(log, lake, now())
            assert all_events(log, lake) == before, line
            one_file(log, lake, counted)


def new_log() -> "AbstractContextManager[str]":
    return server().database(template=server().template("jobs", fill))


def die(now: bool) -> None:
    if now:
        raise Died


def trace_lines(see: Callable[[int], None], work: Callable[[], Any]) -> None:
    """`see` is told every line of the compactor before it runs."""

    def trace(frame: Any, event: str, _: Any) -> Any:
        if frame.f_code.co_filename != compactor.__file__:
            return None
        if event == "line":
            see(frame.f_lineno)
        return trace

    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(None)


@pytest.mark.corrupts
def test_what_is_not_in_the_file_is_not_removed(log: str, lake: LakeStore) -> None:
    def change(point: str) -> None:
        if point == "compact.written":
            with psycopg.connect(log) as connection:
                connection.execute(
                    "update noetl.event_part set events = replace(events::text, '1', '2')::json"
                    " where shard = 1 and last_seq - count < 5 and last_seq >= 5"
                )

    before = list_recorded(log)
    faults.install_fault_hook(change)
    try:
        with pytest.raises(CompactionMismatch, match="the file holds"):
            compact_log(log, lake, now())
    finally:
        faults.install_fault_hook(None)
    assert list_recorded(log) == before


@pytest.mark.corrupts
def test_what_is_young_running_or_not_projected_stays(log: str, lake: LakeStore) -> None:
    assert compact_log(log, lake, now() - 50 * DAY) == CompactionCounts()
    first, second, *others = ids(log)
    with psycopg.connect(log) as connection:
        connection.execute(
            "update noetl.execution set status = 'running', ended_at = null where execution_id = %s",
            [first],
        )
        connection.execute(
            "update noetl.execution set last_seq = last_seq - 1 where execution_id = %s", [second]
        )
    done = compact_log(log, lake, now())
    assert (done.executions, done.partitions) == (len(others), 0)
    assert "event_past" in partitions(log)
    with psycopg.connect(log) as connection:
        left = connection.execute(
            "select distinct execution_id::text from noetl.event order by 1"
        ).fetchall()
    assert left == [(first,), (second,)]


def test_whoever_comes_late_is_told_to_look_again_and_can_be_refused(
    log: str, lake: LakeStore
) -> None:
    one = ids(log)[0]
    compact_log(log, lake, now())

    def part(after: int, **more: Any) -> ExecutionPart:
        return ExecutionPart(
            execution_id=one,
            shard=shard_of(one, SHARDS),
            tenant=DEFAULT_TENANT,
            after=after,
            **more,
        )

    async def work(stores: Stores) -> None:
        epochs = {shard_of(one, SHARDS): 0}
        repeated_batch = AppendBatch(
            epochs=epochs, parts=(part(0, events=(WorkflowInitialized(),)),), lease=LEASE_MICROS
        )
        assert await stores.log.append(repeated_batch) == [Known(one)]
        assert await stores.inbox.post_message(one, Cancel(request="late"))
        (row,) = await stores.inbox.read_messages([shard_of(one, SHARDS)], 10)
        last = await stores.log.read_last_seq(one)
        refused = AppendBatch(
            epochs=epochs, parts=(part(last, events=(), inbox=(row.inbox_id,)),), lease=LEASE_MICROS
        )
        assert await stores.log.append(refused) == [Appended(one, last)]
        assert await stores.inbox.read_messages([shard_of(one, SHARDS)], 10) == []

    with_log(log, lake, work)


def test_an_export_finds_events_that_were_moved_before_it(log: str, lake: LakeStore) -> None:
    before = list_recorded(log)
    compact_log(log, lake, now())
    assert export_log(log, lake).events == len(before)
    assert list_exported(lake) == before
    assert export_log(log, lake) == ExportCounts(0, 0)


def test_compaction_keeps_the_files_of_an_export_that_died_before_it_published_them(
    log: str, lake: LakeStore
) -> None:
    before = list_recorded(log)
    kill_job("export", "export.committed", log, lake)
    compact_log(log, lake, now())
    assert list_exported(lake) == before
    assert export_log(log, lake) == ExportCounts(0, 0)
    assert list_exported(lake) == before


@pytest.mark.corrupts
def test_compaction_is_refused_when_history_is_in_another_lake(
    log: str, lake: LakeStore, tmp_path: Path
) -> None:
    one = ids(log)[0]
    with psycopg.connect(log) as connection:
        connection.execute(
            "update noetl.execution set status = 'running' where execution_id = %s", [one]
        )
    compact_log(log, lake, now())
    with psycopg.connect(log) as connection:
        connection.execute(
            "update noetl.execution set status = 'completed' where execution_id = %s", [one]
        )
    left = list_recorded(log)
    with pytest.raises(Conflict, match="1 files of compacted history are not in the lake"):
        compact_log(log, empty_lake_like(lake, tmp_path / "elsewhere"), now())
    assert list_recorded(log) == left != []


def test_an_export_does_not_repeat_what_was_moved_after_it(log: str, lake: LakeStore) -> None:
    before = list_recorded(log)
    export_log(log, lake)
    compact_log(log, lake, now())
    assert export_log(log, lake) == ExportCounts(0, 0)
    assert list_exported(lake) == before


def test_a_lake_has_one_database_and_a_log_one_compaction(log: str, lake: LakeStore) -> None:
    compact_log(log, lake, 0)
    lake.delete("_owner")
    lake.put_if_absent("_owner", b"another")
    with pytest.raises(Conflict, match="another database"):
        compact_log(log, lake, now())
    with psycopg.connect(log) as connection:
        connection.execute("select pg_advisory_lock(1852794997, 9)")
        with pytest.raises(Conflict, match="another compaction"):
            compact_log(log, lake, now())


QUESTIONS = (
    "select event_type, count(*) as n from events group by event_type order by event_type",
    "select sum(get_json_object(result, '$.reference.bytes')) as n from events",
    "select x.path, count(*) as n, max(e.at) as last from events e join executions x using (execution_id) group by x.path"
    " order by x.path",
)


def test_questions_have_the_same_answers_before_and_after(
    log: str, lake: LakeStore, spark_url: str
) -> None:
    with open_query(log, lake, spark_url) as ask:
        before = [ask(each).to_pylist() for each in QUESTIONS]
    compact_log(log, lake, now())
    with open_query(log, lake, spark_url) as ask:
        assert [ask(each).to_pylist() for each in QUESTIONS] == before
