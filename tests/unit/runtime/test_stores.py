"""Settings that say where large results are kept."""

import asyncio
import logging
from hashlib import sha512
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest

from noetl.model.errors import InvalidInput
from noetl.model.reference import make_address
from noetl.results.formats.rowsets import RowSetWriter
from noetl.results.formats.tables import EncodedTable, TableOptions
from noetl.results.tiers.large import LargeStore
from noetl.runtime.stores import open_large_results
from noetl.settings import StorageSettings
from tests.waiting import HANG_LIMIT_S, look_again

PLACE = make_address("7", "result", "step", "key")
ROWS = [{"n": n} for n in range(1000)]


def store_and_list(home: Path, **settings: Any) -> list[str]:
    """The files there are once a result was stored, and read again."""

    async def run() -> None:
        store = open_large_results(home, StorageSettings(**settings), lambda: 0.0)
        reference = await store.put(PLACE, ROWS)
        assert await store.read_rows(reference, 3, 5) == ROWS[3:5]

    asyncio.run(run())
    return sorted(str(path.relative_to(home)) for path in home.rglob("*") if path.is_file())


def test_without_settings_they_are_below_home(tmp_path: Path) -> None:
    assert store_and_list(tmp_path) == ["results/7/result/step/key"]


def test_a_directory_is_used_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "a b").mkdir()
    assert store_and_list(tmp_path, storage_cloud_tier=f"file://{tmp_path}/a%20b") == [
        "a b/7/result/step/key"
    ]


def test_rows_that_come_only_once_wait_for_a_directory_that_is_not_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    far = tmp_path / "far"
    caplog.set_level(
        logging.WARNING
    )  # a command that ran in this process may have set another level

    async def run() -> None:
        store = open_large_results(
            tmp_path,
            StorageSettings(storage_cloud_tier=f"file://{far}", storage_patience_sec=60.0),
            lambda: 0.0,
        )
        table = in_a_file(store)
        putting = asyncio.create_task(store.put(PLACE, table))
        while "waited for" not in caplog.text:
            await look_again()
        far.mkdir()
        reference = await putting
        table.close()
        assert (await store.read_rows(reference, 3, 4))[0]["n"] == 3

    asyncio.run(asyncio.wait_for(run(), HANG_LIMIT_S))
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [far / "7/result/step/key"]


def in_a_file(store: LargeStore) -> EncodedTable:
    """Too many rows for memory."""
    schema = pa.schema([("n", pa.int64()), ("noise", pa.binary())])
    noise = [sha512(b"%d" % n).digest() for n in range(30_000)]
    table = RowSetWriter(schema, TableOptions(store.staging)).write_all(
        [pa.record_batch([range(len(noise)), noise], schema=schema)]
    )
    assert table.staged.path is not None
    return table


def test_a_directory_is_cached_when_a_place_for_it_is_named(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    files = store_and_list(
        tmp_path,
        storage_cloud_tier=f"file://{tmp_path}/far",
        storage_local_cache_dir=tmp_path / "near",
    )
    assert "far/7/result/step/key" in files
    assert any(name.startswith("near/") for name in files)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"storage_cloud_tier": "s3://b/p", "storage_endpoint": "http://minio:9000"},
            "without TLS",
        ),
        ({"storage_cloud_tier": "s3://b/p", "storage_endpoint": "minio:9000"}, "without TLS"),
        ({"storage_cloud_tier": "file://server/share"}, "names a host"),
        (
            {"storage_cloud_tier": "gs://b/p", "storage_endpoint": "https://x"},
            "cannot be used as a store",
        ),
    ],
)
def test_what_cannot_be_meant_is_said_at_once(
    tmp_path: Path, settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidInput, match=words):
        open_large_results(tmp_path, StorageSettings(**settings), lambda: 0.0)
