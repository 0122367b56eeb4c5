"""`noetl doctor` on a database with more of something than fits a page."""

import asyncio

import pytest

from noetl.embedded import EmbeddedPostgres
from noetl.postgres.pool import connect
from tests.stack import NoetlCommand, temporary_home

STUCK = 1_203
ROWS = f"""
insert into noetl.execution (execution_id, shard, tenant, path, status, last_seq, started_at, updated_at, steps)
select n, 0, 1, 'p', 'running', 1, 1, 1, 1 from generate_series(1, {STUCK}) n
"""


@pytest.mark.corrupts  # its rows stand for executions that have no events
def test_every_stuck_execution_is_counted(noetl: NoetlCommand) -> None:
    assert noetl("catalog", "list").code == 0  # makes the database

    async def fill() -> None:
        connection = await connect(EmbeddedPostgres(noetl.home).ensure_postgres().control)
        await connection.execute(ROWS)
        await connection.close()

    asyncio.run(fill())
    found = {finding["check"]: finding for finding in noetl.json("doctor", code=1)}
    assert found["stuck"]["status"] == "error"
    assert found["stuck"]["message"].startswith(f"{STUCK} execution(s) run")
    assert found["quarantined"]["message"] == "none"


def test_home_that_others_can_read_is_an_error_with_its_remedy() -> None:
    with temporary_home("modes") as home:
        noetl = NoetlCommand(home)
        assert noetl("catalog", "list").code == 0  # makes the home
        found = {finding["check"]: finding for finding in noetl.json("doctor")}
        assert found["modes"]["status"] == "ok"

        home.chmod(0o755)
        (home / "postgres.log").chmod(0o644)
        found = {finding["check"]: finding for finding in noetl.json("doctor", code=1)}
        assert found["modes"]["status"] == "error"
        assert "postgres.log" in found["modes"]["message"]
        assert found["modes"]["do"] == f"chmod -R go-rwx {home}"
