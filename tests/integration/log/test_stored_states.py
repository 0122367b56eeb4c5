"""States in rows of executions: compressed, and as older versions have stored them."""

import pytest

from noetl.log.projections.postgres import ProjectionsPostgres
from noetl.log.projections.stored_state import compress_state
from noetl.model.ids import ExecutionId
from noetl.postgres.pool import Database

STATE = b'{"path":"etl/one","steps":{"a":{},"b":{}}}'
INSERT = """
insert into noetl.execution (execution_id, shard, tenant, path, status, last_seq, started_at, updated_at, steps, state)
values ($1, 0, 1, 'etl/one', 'running', 1, 1, 1, 2, $2)
"""


@pytest.mark.corrupts  # its rows stand for executions that have no events
@pytest.mark.parametrize(
    ("stored", "read"),
    [(STATE, STATE), (compress_state(STATE), STATE), (b"x\x9cdamaged", None), (None, None)],
    ids=["as older versions", "compressed", "damaged", "none"],
)
async def test_a_state_is_read_as_it_was_before_it_was_stored(
    migrated: str, stored: bytes | None, read: bytes | None
) -> None:
    async with Database(migrated, main_size=1, background_size=1) as database:
        async with database.main.open_write_transaction() as session:
            await session.execute(INSERT, 7, stored)
        row = await ProjectionsPostgres(database).read_projection(ExecutionId("7"))
        assert row is not None
        assert row.state == read
