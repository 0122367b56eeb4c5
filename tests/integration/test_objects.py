"""An object store as it is when something is wrong with it: what may be tried again, and what somebody has to change."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest

from noetl.model.errors import InvalidInput, StoreUnavailable
from noetl.model.ids import RefId
from noetl.model.reference import Reference, make_address
from noetl.results.formats.rowsets import RowSetWriter
from noetl.results.formats.tables import TableOptions
from noetl.results.staging import StagedPayload
from noetl.results.tiers.large import LargeStore
from noetl.results.tiers.objects import MAX_REQUEST_BYTES, ObjectTier, open_object_store
from noetl.runtime.stores import open_large_results
from noetl.settings import StorageSettings, read_settings
from tests import s3
from tests.stores import in_tier, make_cached_tier

PLACE = make_address("7", "result", "step", "key")
ROWS = [{"n": n, "text": "x" * 90} for n in range(150_000)]  # 16 MB
BARE = Reference(ref_id=RefId(""), type="disk", uri=str(PLACE))


class WatchedBucket:
    """A store that counts the bytes it gives."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.read = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def get(self, *args: Any, **more: Any) -> Any:
        found = self._store.get(*args, **more)
        begin, end = found.range
        self.read += end - begin
        return found

    def get_range(self, key: str, *, start: int, length: int) -> Any:
        self.read += length
        return self._store.get_range(key, start=start, length=length)

    def get_ranges(self, key: str, *, starts: list[int], ends: list[int], coalesce: int) -> Any:
        self.read += sum(ends) - sum(starts)
        return self._store.get_ranges(key, starts=starts, ends=ends, coalesce=coalesce)


@pytest.fixture
def bucket() -> str:
    return s3.server().place()


@pytest.fixture
def stopped() -> Iterator[s3.S3]:
    server = s3.server()
    server.stop()
    yield server
    server.start()


def test_one_row_of_a_large_list_costs_little_and_nothing_when_it_is_read_again(
    tmp_path: Path, bucket: str
) -> None:
    async def run() -> None:
        store = WatchedBucket(s3.server().connect_bucket(bucket))
        reference = await in_tier(ObjectTier(store, bucket), tmp_path).put(PLACE, ROWS)
        for _ in range(2):  # another reader on the same machine
            reader = in_tier(
                make_cached_tier(ObjectTier(store, bucket), tmp_path / "cache"), tmp_path
            )
            assert await reader.read_rows(reference, 70_000, 70_001) == ROWS[70_000:70_001]
        assert 0 < store.read < 2_000_000
        first = store.read
        assert await reader.read_rows(reference, 70_001, 70_003) == ROWS[70_001:70_003]
        assert store.read == first

    asyncio.run(run())


def test_a_server_that_is_away_may_be_asked_again(
    tmp_path: Path, bucket: str, stopped: s3.S3
) -> None:
    async def run() -> None:
        tier = ObjectTier(stopped.connect_bucket(bucket), bucket)
        for size in (10, MAX_REQUEST_BYTES + 1):
            with pytest.raises(StoreUnavailable):
                await tier.write(PLACE, StagedPayload.from_bytes(os.urandom(size)))
        with pytest.raises(StoreUnavailable):
            await tier.open(BARE)
        with pytest.raises(StoreUnavailable):
            await tier.delete(PLACE)
        with pytest.raises(StoreUnavailable):
            _ = [each async for each in tier.list_objects()]

    asyncio.run(run())


def test_a_put_waits_for_a_server_that_comes_back(
    tmp_path: Path, bucket: str, stopped: s3.S3
) -> None:
    async def run() -> None:
        tier = ObjectTier(stopped.connect_bucket(bucket), bucket)
        store = LargeStore(tier, in_tier(tier, tmp_path).staging, patience=60.0)
        putting = asyncio.create_task(store.put(PLACE, ROWS))
        await asyncio.to_thread(stopped.start)
        assert await store.resolve(await putting) == ROWS

    asyncio.run(run())


@pytest.mark.parametrize("size", [10, MAX_REQUEST_BYTES + 1])
def test_a_wrong_key_or_bucket_is_nothing_to_wait_for(bucket: str, size: int) -> None:
    server = s3.server()
    more = {"endpoint": server.endpoint, "region": s3.REGION, "access_key_id": s3.KEY}
    wrong = open_object_store(bucket, allow_http=True, secret_access_key="wrong", **more)
    nowhere = open_object_store(
        "s3://there-is-none", allow_http=True, secret_access_key=s3.SECRET, **more
    )

    async def run() -> None:
        with pytest.raises(InvalidInput, match="refuses"):
            await ObjectTier(wrong, bucket).write(PLACE, StagedPayload.from_bytes(os.urandom(size)))
        for store in (wrong, nowhere):
            with pytest.raises(InvalidInput, match="refuses"):
                await ObjectTier(store, bucket).open(BARE)
            with pytest.raises(InvalidInput, match="refuses"):
                _ = [each async for each in ObjectTier(store, bucket).list_objects()]

    asyncio.run(run())


def test_the_environment_says_where(
    tmp_path: Path, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3.server().settings(bucket).items():
        monkeypatch.setenv(name, value)

    async def run() -> None:
        store = open_large_results(tmp_path, read_settings(StorageSettings), lambda: 0.0)
        assert await store.resolve(await store.put(PLACE, ROWS)) == ROWS
        found = [
            each
            async for each in ObjectTier(s3.server().connect_bucket(bucket), bucket).list_objects()
        ]
        assert [each.address for each in found] == [PLACE]

    asyncio.run(run())


def test_one_row_of_a_large_row_set_costs_little_and_less_again(
    bucket: str, tmp_path: Path
) -> None:
    """Incompressible rows, so that groups are as large as they get."""
    schema = pa.schema([("id", pa.int64()), ("noise", pa.binary())])

    async def run() -> None:
        watched = WatchedBucket(s3.server().connect_bucket(bucket))
        store = in_tier(make_cached_tier(ObjectTier(watched, bucket), tmp_path / "cache"), tmp_path)
        writer, chance, count = (
            RowSetWriter(schema, TableOptions(store.staging)),
            Random(1),
            100_000,
        )
        for first in range(0, count, 10_000):
            ids = list(range(first, first + 10_000))
            writer.write(
                pa.RecordBatch.from_arrays(
                    [ids, [chance.randbytes(500) for _ in ids]], schema=schema
                )
            )
        table = writer.finish()
        reference = await store.put(PLACE, table)
        table.close()
        assert table.staged.size > 45 << 20
        reader = in_tier(
            make_cached_tier(ObjectTier(watched, bucket), tmp_path / "another"), tmp_path
        )
        watched.read = 0
        assert (await reader.read_rows(reference, 54_321, 54_322))[0]["id"] == 54_321
        assert 0 < watched.read < 4 << 20  # with what is read to find the rows
        watched.read = 0
        assert (await reader.read_rows(reference, 77_777, 77_778))[0]["id"] == 77_777
        assert 0 < watched.read <= 2 << 20
        watched.read = 0
        assert (await reader.read_rows(reference, 77_778, 77_779))[0]["id"] == 77_778
        assert watched.read == 0

    asyncio.run(run())
