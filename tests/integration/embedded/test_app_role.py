"""The role that servers of a home work as: in a new home, and in one that an older NoETL has made."""

import asyncio
import json
import os
from pathlib import Path

import psycopg
import pytest

from noetl.embedded import cluster
from noetl.embedded.postgres import EmbeddedPostgres
from noetl.postgres import migrations
from noetl.postgres.pool import connect
from noetl.postgres.queries import Query
from noetl.postgres.roles import APP_ROLE
from noetl.runtime.home import open_home
from tests.stack import NoetlCommand

LAST_MIGRATION_BEFORE = 28
HELLO = Path("examples/hello.yaml")


def make_older_home(embedded: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch) -> None:
    """A data directory as it was made before servers had a role."""
    with monkeypatch.context() as older:
        older.setattr(cluster, "make_app_role_statements", lambda password: "")
        older.setattr(cluster, "APP_HBA_RULE", "")
        embedded.create_cluster()
    file = embedded.cluster.passwords_file
    passwords = json.loads(file.read_bytes())
    del passwords[APP_ROLE]
    file.write_text(json.dumps(passwords))


def test_a_home_of_an_older_version_goes_on_with_the_role_of_servers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "older"
    home.mkdir(mode=0o700)
    embedded = EmbeddedPostgres(home)
    make_older_home(embedded, monkeypatch)
    known = migrations.load_migrations()[:LAST_MIGRATION_BEFORE]
    with monkeypatch.context() as older:
        older.setattr(migrations, "load_migrations", lambda: known)
        older.setattr(cluster.PostgresCluster, "add_app_role", lambda *_: None)
        dsns = embedded.ensure_postgres()
        assert dsns.app == dsns.control
        asyncio.run(migrate_database(dsns.control))
        embedded.stop_postgres()
    asyncio.run(check_connection_of_servers(home))
    ran = NoetlCommand(home)("run", HELLO, "--json")
    assert ran.code == 0, ran.err
    assert EmbeddedPostgres(home).cluster.read_passwords().keys() >= {APP_ROLE}


async def migrate_database(dsn: str) -> None:
    connection = await connect(dsn)
    await migrations.migrate(connection)
    await connection.close()


async def check_connection_of_servers(home: Path) -> None:
    async with open_home(home) as ports:
        pool = ports.tokens._pool
        assert [*(await pool.read(Query("who", "select current_user, session_user")))[0]] == [
            APP_ROLE
        ] * 2
        for change in (
            "update noetl.event_part set tenant = 2",
            "delete from noetl.event_part",
            "truncate noetl.event_part",
        ):
            with pytest.raises(Exception, match="permission denied"):
                await pool.write(Query("change", change))


def test_the_role_of_servers_logs_in_to_its_own_database_only(embedded: EmbeddedPostgres) -> None:
    dsns = embedded.ensure_postgres()
    with psycopg.connect(dsns.app) as connection:
        assert connection.execute("select current_user").fetchone() == (APP_ROLE,)
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("set role noetl")
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(dsns.app, dbname="noetl_data")
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(dsns.app, dbname="postgres")


def test_a_server_may_have_no_more_than_this_role(home: Path, embedded: EmbeddedPostgres) -> None:
    dsns = embedded.ensure_postgres()
    noetl = NoetlCommand(home)
    assert noetl("run", HELLO, "--json").code == 0  # the owner makes the schema
    ran = noetl.with_env(NOETL_DB_URL=dsns.app)("run", HELLO, "--json")
    assert ran.code == 0, ran.err
    assert os.stat(embedded.cluster.passwords_file).st_mode & 0o077 == 0
