"""Lists of executions read about as many rows as they show, however many there are: the plan is asked, not a clock."""

import json
from typing import Any

import pytest

from noetl.log.projections.postgres import _SQL
from noetl.model.ids import get_first_id
from noetl.postgres.pool import connect

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
ANY = {
    "tenant": 1,
    "status": None,
    "path": None,
    "pattern": None,
    "parent": None,
    "since": 0,
    "floor": 0,
}


def rows_read(node: dict[str, Any]) -> int:
    own = (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"]
    scans = own if "Scan" in node["Node Type"] and node["Node Type"] != "CTE Scan" else 0
    return scans + sum(map(rows_read, node.get("Plans", ())))


@pytest.mark.corrupts  # its rows stand for executions that have no events
@pytest.mark.parametrize("plans", ["force_custom_plan", "force_generic_plan"])
async def test_a_list_reads_no_more_than_it_must(migrated: str, plans: str) -> None:
    connection = await connect(migrated)
    await connection.execute(EXECUTIONS)
    await connection.execute(STARTED)
    await connection.execute("analyze")
    await connection.execute(f"set plan_cache_mode = {plans}")
    query = _SQL["list_executions"]

    async def reads(**wanted: Any) -> int:
        given = {"roots": False, "before": 1 << 62, "limit": 20, **ANY, **wanted}
        statement = f"explain (analyze, format json) {query.text}"
        found = await connection.fetchval(statement, *query.bind(**given))
        return rows_read(json.loads(found)[0]["Plan"])

    assert await reads() <= 100
    assert await reads(status="failed") <= 100
    assert await reads(parent=1) <= 100
    assert await reads(parent=1, status="failed") <= 2_000
    assert await reads(path="etl/7") <= 100
    late = {"since": MANY + 1, "floor": get_first_id(1 << 60)}
    assert await reads(**late) == 0
    assert await reads(**late, status="failed") == 0
    assert await reads(roots=True, **late) == 0
    roots = await reads(roots=True, limit=1)
    assert roots <= MANY + 100, (
        "each child that is newer and has no parent costs one look into an index"
    )
    await connection.close()
