"""Lists of executions read about as many rows as they show, however many there are: Postgres counts them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from noetl.log.projections import postgres
from noetl.log.projections.port import MAX_WALKED_ROWS, ExecutionFilter
from noetl.log.projections.postgres import (
    _SQL,
    make_count_arguments,
    make_histogram_arguments,
    make_list_arguments,
)
from noetl.model.ids import DEFAULT_TENANT, ExecutionId, Tenant
from noetl.model.statuses import STATUSES
from noetl.postgres.pool import SESSION_SETTINGS, Connection, connect

MANY = 20_000
EXECUTIONS = f"""
insert into noetl.execution
    (execution_id, shard, tenant, path, status, last_seq, started_at, updated_at, parent, steps)
select n, 0, 1, 'etl/' || n % 100, case n % 50 when 0 then 'failed' else 'completed' end, 1, n, n,
       case when n > 10 and n % 2 = 0 then 1 end, 1
from generate_series(1, {MANY}) n
"""
# the other half of what is newer than the tenth are children that their parent does not wait for
STARTED = f"""
insert into noetl.start_key (tenant, key, execution_id, at)
select 1, 'child:1:' || n, n, now() from generate_series(11, {MANY}) n where n % 2 = 1
union all select 1, 'key:' || n, n, now() from generate_series(1, 10) n
"""


# in the transaction that runs
ROWS_READ = """
select coalesce(sum(coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0)), 0)::int
from pg_stat_xact_user_tables where schemaname = 'noetl'
"""


@asynccontextmanager
async def fill_table(dsn: str, plans: str) -> AsyncIterator[Connection]:
    """A connection to a database with many executions, which plans its queries in this way."""
    connection = await connect(dsn)
    await connection.execute(EXECUTIONS)
    await connection.execute(STARTED)
    await connection.execute("analyze")
    for setting, value in {**SESSION_SETTINGS, "plan_cache_mode": plans}.items():
        await connection.execute(f"set {setting} = '{value}'")
    try:
        yield connection
    finally:
        await connection.close()


async def count_rows_read(connection: Connection, name: str, given: dict[str, Any]) -> int:
    query = _SQL[name]
    async with connection.transaction():
        before = await connection.fetchval(ROWS_READ)
        await connection.fetch(query.text, *query.bind(**given))
        return int(await connection.fetchval(ROWS_READ)) - before


@pytest.mark.corrupts  # its rows stand for executions that have no events
@pytest.mark.parametrize("plans", ["force_custom_plan", "force_generic_plan"])
async def test_a_list_reads_no_more_than_it_must(migrated: str, plans: str) -> None:
    async with fill_table(migrated, plans) as connection:

        async def reads(
            limit: int = 20,
            tenant: Tenant = DEFAULT_TENANT,
            before: ExecutionId | None = None,
            **fields: Any,
        ) -> int:
            arguments = make_list_arguments(tenant, ExecutionFilter(**fields), before, limit)
            return await count_rows_read(connection, "list_executions", arguments)

        lanes = len(STATUSES)
        few = 20 * (lanes + 1)  # each lane finds its page, and the newest of all are shown
        assert await reads() <= few
        assert await reads(statuses=("failed",)) <= 100
        assert await reads(statuses=("failed", "running")) <= 100
        assert await reads(statuses=("paused",)) == 0
        assert await reads(parent=ExecutionId("1")) <= 100
        assert await reads(parent=ExecutionId("1"), statuses=("failed",)) <= 2_000
        assert await reads(path="etl/7") <= few
        assert await reads(path="etl/7", before=ExecutionId(str(MANY // 2))) <= few
        assert await reads(path="etl/none") == 0
        assert await reads(path="etl/50", statuses=("failed",)) <= 100
        assert await reads(path="etl/7*") <= 2_000
        assert await reads(id_prefix="1999") <= 100
        assert await reads(waiting=True) == 0
        assert await reads(tenant=Tenant(2)) == 0
        late = {"since": 1 << 60}
        assert await reads(**late) == 0
        assert await reads(**late, statuses=("failed",)) == 0
        assert await reads(roots=True, **late) == 0
        # a row that does not match costs one look, and one more into the index of keys
        walked = 2 * (MAX_WALKED_ROWS + 100)
        assert await reads(text="nowhere", statuses=("completed",)) <= walked
        assert await reads(roots=True, statuses=("completed",), limit=1) <= walked


@pytest.mark.corrupts
@pytest.mark.parametrize("plans", ["force_custom_plan", "force_generic_plan"])
async def test_counts_read_a_bounded_number_of_rows(
    migrated: str, plans: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "MAX_COUNTED_ROWS", 99)
    monkeypatch.setattr(postgres, "MAX_HISTOGRAM_ROWS", 200)
    async with fill_table(migrated, plans) as connection:
        for fields in ({}, {"path": "etl/7"}, {"path": "etl/*"}, {"until": 1 << 60}):
            wanted = ExecutionFilter(**fields)
            counts = make_count_arguments(DEFAULT_TENANT, wanted)
            assert await count_rows_read(connection, "count_executions", counts) <= 200, fields
            buckets = make_histogram_arguments(DEFAULT_TENANT, wanted, 1 << 60, 60)
            assert await count_rows_read(connection, "make_histogram", buckets) <= 400, fields
