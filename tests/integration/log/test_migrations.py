"""The schema: made once, step by step or at once, refused when it is not ours; and every named query fits it."""

import asyncio
from pathlib import Path
from typing import Any

import asyncpg
import pytest

import noetl
from noetl.log.events.event_halves import split_event
from noetl.model.codec import encode
from noetl.model.envelope import Envelope
from noetl.model.errors import Failure
from noetl.model.events import (
    CommandCompleted,
    CommandIssued,
    Event,
    PlaybookFailed,
    PlaybookInitialized,
    SignalReceived,
    StepEnter,
    get_result,
)
from noetl.model.ids import ActivationId, CommandId, ExecutionId
from noetl.postgres import migrations
from noetl.postgres.migrations import Migration, SchemaMismatch, migrate
from noetl.postgres.pool import Connection, connect
from noetl.postgres.queries import load_queries
from tests.integration.log.conftest import SHARDS
from tests.postgres import Postgres

SOURCE = Path(noetl.__file__).parent
QUERIES = [
    query
    for file in sorted(SOURCE.rglob("*.sql"))
    if file.parent.name != "migrations"
    for query in load_queries(file).values()
]


async def shape(connection: Connection) -> dict[str, list[tuple[Any, ...]]]:
    """Everything in the schema, as Postgres describes it."""
    queries = {
        "columns": "select table_name, ordinal_position, column_name, data_type, collation_name, is_nullable,"
        " column_default, generation_expression from information_schema.columns where table_schema = 'noetl' order by 1, 2",
        "indexes": "select indexname, indexdef from pg_indexes where schemaname = 'noetl' order by 1",
        "constraints": "select conname, pg_get_constraintdef(oid) from pg_constraint"
        " where connamespace = 'noetl'::regnamespace order by 1, 2",
        "functions": "select proname, pg_get_functiondef(oid) from pg_proc"
        " where pronamespace = 'noetl'::regnamespace order by 1",
        "views": "select viewname, definition from pg_views where schemaname = 'noetl' order by 1",
        "versions": "select version, name, sha256 from noetl.schema_version order by 1",
    }
    return {
        name: [tuple(row) for row in await connection.fetch(text)] for name, text in queries.items()
    }


async def test_step_by_step_gives_the_same_schema_as_at_once(
    postgres: Postgres, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = migrations.load_migrations()
    with postgres.database() as other:
        at_once, by_steps = await connect(database), await connect(other)
        await migrate(at_once, shards=SHARDS)
        for count in range(1, len(known) + 1):
            monkeypatch.setattr(migrations, "load_migrations", lambda count=count: known[:count])
            await migrate(by_steps, shards=SHARDS)
        assert await shape(by_steps) == await shape(at_once)
        for connection in (at_once, by_steps):
            await connection.close()


async def test_migrating_again_changes_nothing_and_the_shards_stay(database: str) -> None:
    connection = await connect(database)
    assert await migrate(connection, shards=SHARDS) == SHARDS
    before = await shape(connection)
    assert await migrate(connection, shards=64) == SHARDS
    assert await shape(connection) == before
    await connection.close()


@pytest.mark.corrupts  # rows without a log
async def test_what_waited_for_an_age_alone_is_judged_anew(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before 0011 it may have forgotten the retention."""
    known = migrations.load_migrations()
    connection = await connect(database)
    monkeypatch.setattr(migrations, "load_migrations", lambda: known[:10])
    await migrate(connection, shards=SHARDS)
    over = 1 << 61
    judged = {1: 5, 2: None, 3: -1, 4: over, 5: over + 7, 6: over - 1, 7: 5}
    await connection.executemany(
        "insert into noetl.execution (execution_id, shard, tenant, path, status, last_seq, started_at, updated_at, ended_at,"
        " steps, judge_at) values ($1, 0, 1, 'p', 'completed', 1, 1, 2, $2, 0, $3)",
        [(number, None if number == 7 else 2, at) for number, at in judged.items()],
    )
    monkeypatch.setattr(migrations, "load_migrations", lambda: known)
    await migrate(connection, shards=SHARDS)
    rows = await connection.fetch(
        "select execution_id, judge_at, retained_at from noetl.execution order by 1"
    )
    assert [tuple(row) for row in rows] == [
        (1, None, None), (2, None, None), (3, -1, None), (4, over, None), (5, over + 7, None), (6, None, None), (7, 5, None),
    ]  # fmt: skip
    await connection.close()


async def test_many_processes_may_migrate_at_once(database: str) -> None:
    connections = [await connect(database) for _ in range(5)]
    assert (
        await asyncio.gather(*[migrate(each, shards=SHARDS) for each in connections])
        == [SHARDS] * 5
    )
    for each in connections:
        await each.close()


async def test_an_older_program_is_refused(migrated: str) -> None:
    connection = await connect(migrated)
    await connection.execute("insert into noetl.schema_version values (999, 'later', 'x', now())")
    with pytest.raises(SchemaMismatch, match=r"schema version 999, this NoETL knows \d") as refused:
        await migrate(connection)
    assert refused.value.hint is not None
    await connection.close()


async def test_a_migration_that_was_changed_is_refused(
    migrated: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = await connect(migrated)
    changed = [
        Migration(each.version, each.name, each.text, "other")
        for each in migrations.load_migrations()
    ]
    monkeypatch.setattr(migrations, "load_migrations", lambda: changed)
    with pytest.raises(SchemaMismatch, match="migration 1"):
        await migrate(connection)
    await connection.close()


async def test_every_named_query_can_be_prepared(migrated: str) -> None:
    connection = await connect(migrated)
    assert len(QUERIES) > 30
    for query in QUERIES:
        statement = await connection.prepare(query.text)
        assert len(statement.get_parameters()) == len(query.parameters), query.name
    await connection.close()


async def test_tables_have_no_triggers_and_no_default_partition(migrated: str) -> None:
    connection = await connect(migrated)
    triggers = "select count(*) from pg_trigger t join pg_class c on c.oid = t.tgrelid where not tgisinternal"
    assert await connection.fetchval(f"{triggers} and c.relkind <> 'v'") == 0
    bounds = [row[0] for row in await connection.fetch(
        "select pg_get_expr(c.relpartbound, c.oid) from pg_class c join pg_inherits i on i.inhrelid = c.oid"
        " where i.inhparent = 'noetl.event_part'::regclass"
    )]  # fmt: skip
    assert len(bounds) == 4  # what is past, now, and two ahead
    assert not any("DEFAULT" in bound for bound in bounds)
    assert await connection.fetchval("select noetl.make_partitions(2)") == 0
    assert await connection.fetchval("select noetl.make_partitions(4)") == 2
    await connection.close()


async def test_views_have_the_columns_of_the_specification(migrated: str) -> None:
    connection = await connect(migrated)
    await connection.fetch(
        "select id, execution_id, node_id, action, context, status, priority, attempts, max_attempts, available_at,"
        " lease_until, worker_id, last_heartbeat, created_at, updated_at from noetl.queue"
    )
    await connection.fetch(
        "select event_id, execution_id, event_type, status, node_id, node_name, node_type, context, result, metadata,"
        ' "timestamp" from noetl.event_log'
    )
    rows = await connection.fetch(
        "select shard_id, last_projected_event_id, last_projected_at, lag_ms from noetl.projection_checkpoint"
    )
    assert len(rows) == SHARDS
    await connection.close()


@pytest.mark.parametrize(
    "statement",
    [
        "update noetl.queue set status = 'queued', worker_id = null, lease_until = null"
        " where status = 'leased' and lease_until < now()",
        "update noetl.queue set status = 'done', lease_until = null where id = 1",
        "update noetl.queue q set status = 'leased', worker_id = 'w', attempts = q.attempts + 1 where q.id = 1 returning q.*",
        "delete from noetl.queue",
        "insert into noetl.queue (execution_id, node_id, action) values (1, 'a', 'b')",
    ],
)
async def test_the_queue_view_is_read_only_and_says_what_to_use_instead(
    migrated: str, statement: str
) -> None:
    connection = await connect(migrated)
    with pytest.raises(
        asyncpg.ReadOnlySQLTransactionError, match=r"noetl\.queue is read-only"
    ) as raised:
        await connection.execute(statement)
    assert "noetl doctor" in str(raised.value.hint)
    await connection.close()


@pytest.mark.corrupts  # a row without a log
async def test_what_older_versions_recorded_stays_and_new_rows_are_checked(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = migrations.load_migrations()
    number = next(each.version for each in known if each.name == "no_rows")
    connection = await connect(database)
    monkeypatch.setattr(migrations, "load_migrations", lambda: known[: number - 1])
    await migrate(connection, shards=SHARDS)
    insert = (
        "insert into noetl.event (shard, seq, epoch, tenant, execution_id, event_type, result, meta, dedup_key, at)"
        """ values (0, $1, 1, 1, 7, 'x', '{"status": "ok", "context": {"rows": [1]}}', '{}', $2, now())"""
    )
    await connection.execute(insert, 1, "old")
    monkeypatch.setattr(migrations, "load_migrations", lambda: known)
    await migrate(connection, shards=SHARDS)
    with pytest.raises(Exception, match="event_holds_no_payload"):
        await connection.execute(
            "insert into noetl.event_part (execution_id, last_seq, epoch, tenant, count, shard, ends, events)"
            """ values (7, 2, 1, 1, 1, 0, false, '[["new", {}, {"status": "ok", "context": {"rows": [1]}}]]')"""
        )
    assert await connection.fetchval("select dedup_key from noetl.event") == "old"
    await connection.close()


OLD_EVENTS: list[Event] = [
    PlaybookInitialized(at=1, execution_id=ExecutionId("7"), path="p", playbook="h"),
    StepEnter(at=2, step="s", activation=ActivationId("a"), run=1, cause="x"),
    CommandIssued(
        at=2,
        command_id=CommandId("c"),
        step="s",
        activation=ActivationId("a"),
        kind="run",
        pool="cpu",
    ),
    CommandCompleted(
        at=3,
        command_id=CommandId("c"),
        attempt=2,
        step="s",
        activation=ActivationId("a"),
        result=Envelope(status="ok", context={"t": "\u0000 \u00e9 \\u0000", "n": 1.0}),
        set={"ctx.z": "\u0000"},
    ),
    SignalReceived(at=4, name="n", request='r"\\', payload={"z": ["\u0000"], "a": 1}),
    PlaybookFailed(at=5, error=Failure(code="X", message="'"), step="s"),
]
EVENT_COLUMNS = (
    "shard, seq, epoch, tenant, event_id, execution_id, event_type, step, command_id, attempt, status, result::text,"
    " meta::text, dedup_key, at"
)


def make_old_row(shard: int, seq: int, epoch: int, execution_id: int, event: Event) -> Any:
    """The row of an event as versions before 0021 wrote it."""
    meta, result = split_event(event, encode(event))
    envelope = get_result(event)
    status = None if envelope is None else envelope.status
    known = {name: getattr(event, name, None) for name in ("step", "command_id", "attempt")}
    return (
        shard, seq, epoch, 1, execution_id, event.type, known["step"] or None, known["command_id"], known["attempt"], status,
        result, meta, event.key, event.at,
    )  # fmt: skip


def make_old_rows() -> list[Any]:
    """Two executions in turns, then one alone, an owner that changes, and a long row of events."""
    rows: list[Any] = []
    for number, event in enumerate(OLD_EVENTS[:4]):
        rows.append(make_old_row(1, len(rows) + 1, 1, 7, event))
        if number % 2:
            rows.append(make_old_row(1, len(rows) + 1, 1, 9, event))
    rows += [
        make_old_row(1, len(rows) + 1 + n, 2, 7, each) for n, each in enumerate(OLD_EVENTS[4:])
    ]
    signals = [SignalReceived(at=n, name="n", request=f"{n}") for n in range(150)]
    return rows + [make_old_row(2, n + 1, 1, 10, each) for n, each in enumerate(signals)]


@pytest.mark.corrupts  # events that no engine would decide
async def test_events_of_older_versions_are_the_same_in_every_column(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = migrations.load_migrations()
    number = next(each.version for each in known if each.name == "packed_events")
    connection = await connect(database)
    monkeypatch.setattr(migrations, "load_migrations", lambda: known[: number - 1])
    await migrate(connection, shards=SHARDS)
    await connection.executemany(
        "insert into noetl.event (shard, seq, epoch, tenant, execution_id, event_type, step, command_id, attempt, status,"
        " result, meta, dedup_key, at) values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, noetl.moment($14))",
        make_old_rows(),
    )
    query = f"select {EVENT_COLUMNS} from noetl.event order by shard, seq"
    before = [tuple(row) for row in await connection.fetch(query)]
    types = "select column_name, data_type from information_schema.columns where table_name = 'event' order by 1"
    types_before = [tuple(row) for row in await connection.fetch(types)]
    monkeypatch.setattr(migrations, "load_migrations", lambda: known)
    await migrate(connection, shards=SHARDS)
    assert [tuple(row) for row in await connection.fetch(query)] == before
    types_after = [tuple(row) for row in await connection.fetch(types)]
    assert [each for each in types_after if each[0] != "part_seq"] == types_before
    parts = await connection.fetch(
        "select execution_id, last_seq, count, epoch, ends from noetl.event_part order by shard, last_seq"
    )
    assert [tuple(row) for row in parts] == [
        (7, 2, 2, 1, False),
        (9, 3, 1, 1, False),
        (7, 5, 2, 1, False),
        (9, 6, 1, 1, False),
        (7, 8, 2, 2, True),
        (10, 64, 64, 1, False),
        (10, 128, 64, 1, False),
        (10, 150, 22, 1, False),
    ]
    keys = await connection.fetchval("select count(*) from noetl.event_key")
    assert keys == 151
    await connection.close()
