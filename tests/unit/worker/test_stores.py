"""Settings that say where large results are kept."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from noetl.model.errors import InvalidInput
from noetl.model.reference import address
from noetl.settings import Storage
from noetl.worker.stores import large

PLACE = address("7", "result", "step", "key")
ROWS = [{"n": n} for n in range(1000)]


def kept(home: Path, **settings: Any) -> list[str]:
    """The files there are once a result was stored, and read again."""

    async def run() -> None:
        store = large(home, Storage(**settings), lambda: 0.0)
        reference = await store.put(PLACE, ROWS)
        assert await store.rows(reference, 3, 5) == ROWS[3:5]

    asyncio.run(run())
    return sorted(str(path.relative_to(home)) for path in home.rglob("*") if path.is_file())


def test_without_settings_they_are_below_home(tmp_path: Path) -> None:
    assert kept(tmp_path) == ["results/7/result/step/key"]


def test_a_directory_is_used_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "a b").mkdir()
    assert kept(tmp_path, storage_cloud_tier=f"file://{tmp_path}/a%20b") == ["a b/7/result/step/key"]


def test_a_directory_is_cached_when_a_place_for_it_is_named(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    files = kept(tmp_path, storage_cloud_tier=f"file://{tmp_path}/far", storage_local_cache_dir=tmp_path / "near")
    assert "far/7/result/step/key" in files
    assert any(name.startswith("near/") for name in files)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"storage_cloud_tier": "s3://b/p", "storage_endpoint": "http://minio:9000"}, "without TLS"),
        ({"storage_cloud_tier": "s3://b/p", "storage_endpoint": "minio:9000"}, "without TLS"),
        ({"storage_cloud_tier": "file://server/share"}, "names a host"),
        ({"storage_cloud_tier": "gs://b/p", "storage_endpoint": "https://x"}, "cannot be used as a store"),
    ],
)
def test_what_cannot_be_meant_is_said_at_once(tmp_path: Path, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        large(tmp_path, Storage(**settings), lambda: 0.0)
