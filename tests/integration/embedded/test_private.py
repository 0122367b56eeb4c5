"""What other users, and the roles of each other, cannot do."""

import os
import stat
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from noetl.embedded.postgres import Dsns, EmbeddedPostgres


@pytest.fixture
def dsns(embedded: EmbeddedPostgres) -> Dsns:
    return embedded.ensure_postgres()


def at(dsn: str | None, **change: str) -> str:
    return psycopg.conninfo.make_conninfo(dsn or "", **change)


def test_nothing_in_home_is_open_to_other_users(home: Path, dsns: Dsns) -> None:
    for path in [home, *home.rglob("*")]:
        assert stat.S_IMODE(path.lstat().st_mode) & 0o077 == 0 or path.is_symlink(), path


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT %s::int",
        "INSERT INTO pg_temp.kept VALUES (%s)",
        "SELECT set_config('log_min_messages', 'debug5', false), %s",
        "DO $$ BEGIN RAISE WARNING 'it is CANARY-815'; RAISE EXCEPTION 'it is CANARY-815'; END $$ -- %s",
        'SELECT * FROM "CANARY-815" WHERE x = %s',
    ],
)
def test_log_of_the_server_holds_no_values(home: Path, dsns: Dsns, statement: str) -> None:
    for dsn in (dsns.control, dsns.data):
        with psycopg.connect(at(dsn), autocommit=True) as connection:
            connection.execute("CREATE TEMP TABLE kept (x int CHECK (x > 0))")
            for run in (connection.execute, psycopg.ClientCursor(connection).execute):
                with pytest.raises(psycopg.Error):
                    run(statement, ["CANARY-815"])
    log = home / "postgres.log"
    assert "CANARY" not in log.read_text()
    assert "ready to accept connections" in log.read_text()
    assert stat.S_IMODE(log.stat().st_mode) == 0o600


def test_addresses_do_not_show_in_a_log(dsns: Dsns) -> None:
    assert str(urlsplit(dsns.control).password) not in repr(dsns)


def test_each_role_owns_its_database(dsns: Dsns) -> None:
    for dsn in (dsns.control, dsns.data):
        with psycopg.connect(at(dsn)) as connection:
            connection.execute("CREATE SCHEMA mine")
            connection.execute("CREATE TABLE mine.t (x int)")
            connection.execute("CREATE TABLE public.t (x int)")
            row = connection.execute(
                "SELECT rolsuper FROM pg_roles WHERE rolname = current_user"
            ).fetchone()
            assert row == (False,)
            connection.rollback()


@pytest.mark.parametrize("database", ["noetl", "postgres", "template1"])
def test_the_role_of_users_tables_reaches_no_other_database(dsns: Dsns, database: str) -> None:
    with pytest.raises(psycopg.OperationalError, match=r"no pg_hba.conf entry|permission denied"):
        psycopg.connect(at(dsns.data, dbname=database))


def test_the_control_role_has_no_rights_on_users_tables(dsns: Dsns) -> None:
    with pytest.raises(psycopg.OperationalError, match="permission denied"):
        psycopg.connect(at(dsns.control, dbname="noetl_data"))


def test_nobody_enters_without_the_password(dsns: Dsns) -> None:
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(at(dsns.control, password="guess"))


def test_no_superuser_can_log_in(dsns: Dsns) -> None:
    with pytest.raises(psycopg.OperationalError, match=r"no pg_hba.conf entry"):
        psycopg.connect(at(dsns.control, user="postgres", dbname="postgres"))


def test_it_is_durable_and_checks_its_pages(dsns: Dsns) -> None:
    expected = {
        "fsync": "on",
        "synchronous_commit": "on",
        "full_page_writes": "on",
        "data_checksums": "on",
    }
    expected |= {"server_encoding": "UTF8", "TimeZone": "UTC", "listen_addresses": "127.0.0.1"}
    with psycopg.connect(at(dsns.control)) as connection:
        for name, value in expected.items():
            assert connection.execute("SELECT current_setting(%s)", [name]).fetchone() == (
                value,
            ), name


@pytest.mark.skipif(os.geteuid() != 0, reason="only root changes user")
def test_as_root_the_server_is_an_ordinary_user_and_home_stays_ours(home: Path, dsns: Dsns) -> None:
    pid = int((home / "postgres" / "data" / "postmaster.pid").read_text().split()[0])
    ids = next(
        line
        for line in Path(f"/proc/{pid}/status").read_text().splitlines()
        if line.startswith("Uid:")
    )

    assert "0" not in ids.split()[1:]
    assert home.stat().st_uid == (home / "postgres").stat().st_uid == 0
