"""The role of servers: it appends events, and changes or deletes none of them."""

import asyncpg
import pytest

from noetl.postgres.migrations import migrate
from noetl.postgres.pool import Database, connect
from noetl.postgres.queries import Query
from noetl.postgres.roles import APP_ROLE
from tests.postgres import server

FORBIDDEN = [
    "update noetl.event_part set tenant = 2",
    "delete from noetl.event_part",
    "truncate noetl.event_part",
    "update noetl.event_past set tenant = 2",
    "delete from noetl.event_past",
    "truncate noetl.event_past",
    "insert into noetl.event_past select * from noetl.event_part",
    "select * from noetl.event_past",
    "update noetl.event_key set seq = 1",
    "delete from noetl.event_key",
    "truncate noetl.event_key",
    "select from noetl.event_part for update",
    "delete from noetl.event",
    "delete from noetl.event_log",
    "alter table noetl.event_part detach partition noetl.event_past",
    "drop table noetl.event_past",
    "delete from noetl.tombstone",
    "insert into noetl.audit values (1, 1, now(), '{}', sha256('x'))",
    "update noetl.audit set entry = '{}'",
    "delete from noetl.audit",
    "update noetl.audit_head set seq = 0",
    "truncate noetl.audit",
    "delete from noetl.schema_version",
    "create table noetl.mine (x int)",
    "alter table noetl.event_part disable trigger all",
    "create function noetl.mine() returns int language sql as 'select 1'",
    "create or replace function noetl.make_partitions(ahead int) returns int language sql as 'select 1'",
]
ALLOWED = [
    "select noetl.make_partitions(3)",
    "insert into noetl.event_key (execution_id, key, seq) values (1, 'k', 1)",
    "select * from noetl.event",
    "delete from noetl.command",
    "select noetl.append_audit(array[1], array['{}'], now())",
]


async def fill(dsn: str) -> None:
    connection = await connect(dsn)
    await migrate(connection, shards=4)
    await connection.close()


async def test_the_role_of_servers_cannot_change_events() -> None:
    with server().database(template=server().template("append_only", fill)) as dsn:
        connection = await connect(dsn, {"role": APP_ROLE})
        for statement in ALLOWED:
            await connection.execute(statement)
        for statement in FORBIDDEN:
            with pytest.raises(
                (asyncpg.InsufficientPrivilegeError, asyncpg.ObjectNotInPrerequisiteStateError)
            ):
                await connection.execute(statement)
        # Postgres answers a grant of what the role does not own with a warning.
        await connection.execute(f"grant delete on noetl.event_part to {APP_ROLE}")
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await connection.execute("delete from noetl.event_part")
        await connection.close()


async def test_what_a_statement_of_a_server_may_not_do_is_an_error_of_its_caller() -> None:
    with server().database(template=server().template("append_only", fill)) as dsn:
        async with Database(dsn, settings={"role": APP_ROLE}) as database:
            with pytest.raises(asyncpg.InsufficientPrivilegeError, match="permission denied"):
                await database.main.write(Query("x", "delete from noetl.event_part"))
            assert len(await database.main.read(Query("y", "select 1"))) == 1


async def test_a_role_that_is_made_after_the_schema_gets_its_rights_at_the_next_start() -> None:
    with server().database(template=server().template("append_only", fill)) as dsn:
        owner = await connect(dsn)
        await owner.execute(
            f"revoke usage on schema noetl from {APP_ROLE}; revoke all on all tables in schema noetl from {APP_ROLE}"
        )
        await migrate(owner, shards=4)
        app = await connect(dsn, {"role": APP_ROLE})
        assert await app.fetchval("select count(*)::int from noetl.execution_shard") == 4
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await app.execute("delete from noetl.event_part")
        await app.close()
        await owner.close()


async def test_every_table_is_either_for_servers_or_listed_as_kept() -> None:
    """A table that a later migration makes gets all rights, unless it is listed."""
    with server().database(template=server().template("append_only", fill)) as dsn:
        owner = await connect(dsn)
        rows = await owner.fetch(
            "select c.relname from pg_class c where c.relnamespace = 'noetl'::regnamespace and c.relkind in ('r', 'p')"
            " and not c.relispartition and not has_table_privilege($1, c.oid, 'delete') order by 1",
            APP_ROLE,
        )
        kept = [
            "audit",
            "audit_head",
            "cold_file",
            "event_key",
            "event_part",
            "schema_version",
            "tombstone",
        ]
        assert [row["relname"] for row in rows] == kept
        partitions = await owner.fetch(
            "select c.relname from pg_class c where c.relnamespace = 'noetl'::regnamespace and c.relispartition"
            " and c.relkind = 'r' and has_table_privilege($1, c.oid, 'select, insert, update, delete, truncate')",
            APP_ROLE,
        )
        assert partitions == []
        await owner.close()


async def test_a_long_transaction_does_not_stop_appends_behind_a_new_quota() -> None:
    """A backup reads all tables for as long as it takes. The first quota for bytes needs the table of tenants alone."""
    with server().database(template=server().template("append_only", fill)) as dsn:
        backup = await connect(dsn)
        await backup.execute("begin")
        await backup.execute("select from noetl.tenant")
        connection = await connect(dsn, {"role": APP_ROLE})
        with pytest.raises(asyncpg.LockNotAvailableError):
            await connection.execute("select noetl.set_quotas(1, null, null, 100)")
        await backup.execute("rollback")
        await connection.execute("select noetl.set_quotas(1, null, null, 100)")
        assert await connection.fetchval("select max_bytes from noetl.tenant") == 100
        await connection.close()
        await backup.close()
