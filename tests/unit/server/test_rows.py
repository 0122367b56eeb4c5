"""Rows that need not be read from the store: right, or not given."""

import asyncio

import pytest
from msgspec import structs

from noetl.log.projections.memory import ProjectionsMemory
from noetl.log.projections.port import Projection
from noetl.log.tables import MemoryDatabase
from noetl.model.ids import DEFAULT_TENANT, ExecutionId
from noetl.server.dispatch.shards import OwnedShards
from noetl.server.executions import rows as kept_rows
from noetl.server.executions.rows import MAX_CACHED_ROW_BYTES, OWNERSHIP_TTL_S, RowCache
from noetl.shard_rows import make_shard_rows
from tests.unit.server.cluster import SteppedClock

ONE = ExecutionId("1")
RUNNING = Projection(
    execution_id=ONE,
    shard=2,
    tenant=DEFAULT_TENANT,
    path="p",
    status="running",
    last_seq=5,
    started_at=1,
    updated_at=2,
)
ENDED = structs.replace(RUNNING, status="completed", last_seq=9, ended_at=3)


def owner(seconds_ago: float = 0.0) -> OwnedShards:
    shards = OwnedShards(4)
    shards.adopt(2, 1)
    shards.confirmed_at = asyncio.get_running_loop().time() - seconds_ago
    return shards


def cache(shards: OwnedShards, limit: int = 2_000) -> RowCache:
    return RowCache(
        ProjectionsMemory(MemoryDatabase(make_shard_rows(4), SteppedClock())), shards, limit
    )


async def test_what_was_written_is_given_while_the_shard_is_ours() -> None:
    rows = cache(owner())
    rows.cache_written([RUNNING])
    assert rows.get(ONE) == RUNNING
    assert rows.get(ExecutionId("2")) is None


async def test_what_runs_is_not_given_when_nobody_knows_whose_the_shard_is() -> None:
    rows = cache(owner(seconds_ago=OWNERSHIP_TTL_S + 0.1))
    rows.cache_written([RUNNING])
    assert rows.get(ONE) is None


async def test_what_has_ended_is_given_whosever_the_shard_is() -> None:
    rows = cache(OwnedShards(4))
    rows.cache_final(RUNNING)
    assert rows.get(ONE) is None
    rows.cache_final(ENDED)
    assert rows.get(ONE) == ENDED


async def test_what_is_written_to_a_shard_that_was_lost_meanwhile_is_not_kept() -> None:
    shards = owner()
    rows = cache(shards)
    shards.drop(2)
    rows.cache_written([RUNNING])
    assert rows.get(ONE) is None


@pytest.mark.parametrize("comes", [True, False])
async def test_a_shard_that_comes_or_goes_takes_its_rows_along(comes: bool) -> None:
    shards = owner()
    rows = cache(shards)
    rows.cache_written([RUNNING, structs.replace(RUNNING, execution_id=ExecutionId("3"), shard=1)])
    if comes:
        shards.adopt(2, 7)
    else:
        shards.drop(2)
    assert rows.get(ONE) is None


async def test_an_older_row_never_replaces_a_newer_one() -> None:
    rows = cache(owner())
    rows.cache_written([ENDED])
    rows.cache_written([RUNNING])
    assert rows.get(ONE) == ENDED


async def test_few_rows_and_few_bytes_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_rows, "MAX_CACHED_STATE_BYTES", 100)
    rows = cache(owner(), limit=3)
    many = [
        structs.replace(RUNNING, execution_id=ExecutionId(str(n)), state=b"x" * 40)
        for n in range(1, 6)
    ]
    rows.cache_written(many)
    assert [rows.get(row.execution_id) for row in many] == [None, None, None, *many[3:]]
    rows.cache_written([structs.replace(RUNNING, state=b"x" * (MAX_CACHED_ROW_BYTES + 1))])
    assert rows.get(ONE) is None
    assert rows._cached_rows.weight == 80
