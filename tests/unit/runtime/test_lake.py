"""Which lake a process uses."""

from pathlib import Path

import pytest

from noetl.model.errors import InvalidInput
from noetl.runtime.lake import find_lake, open_lake
from noetl.settings import StorageSettings, read_settings


def lake_name(home: Path, **settings: str) -> str:
    return open_lake(home, StorageSettings(**settings)).name  # type: ignore[arg-type]  # as the environment gives them


def test_lake_is_below_the_home_of_large_results(tmp_path: Path) -> None:
    assert lake_name(tmp_path) == str(tmp_path / "results" / "lake")
    assert (
        lake_name(tmp_path, storage_cloud_tier="file:///shared/with%20us") == "/shared/with us/lake"
    )
    assert lake_name(tmp_path, storage_cloud_tier="s3://bucket/prefix") == "s3://bucket/prefix/lake"
    assert lake_name(tmp_path, storage_cloud_tier="gs://bucket/") == "gs://bucket/lake"


def test_setting_names_another_place(tmp_path: Path) -> None:
    tier = "s3://bucket/prefix"
    assert lake_name(tmp_path, storage_cloud_tier=tier, storage_lake="/mnt/lake") == "/mnt/lake"
    assert (
        lake_name(tmp_path, storage_cloud_tier=tier, storage_lake="file:///mnt/lake") == "/mnt/lake"
    )
    assert lake_name(tmp_path, storage_lake="s3://other/lake") == "s3://other/lake"
    with pytest.raises(InvalidInput, match=r"NOETL_STORAGE_LAKE: .* does not match the pattern"):
        read_settings(StorageSettings, storage_lake="ftp://host/lake")


def test_directory_lake_of_earlier_versions_stays_in_use_until_it_is_moved(tmp_path: Path) -> None:
    storage = StorageSettings(storage_cloud_tier="s3://bucket/prefix")
    (tmp_path / "lake").mkdir()
    assert find_lake(tmp_path, storage) == "s3://bucket/prefix/lake"
    (tmp_path / "lake" / "_owner").write_text("me")
    assert find_lake(tmp_path, storage) == str(tmp_path / "lake")
    chosen = StorageSettings(
        storage_cloud_tier="s3://bucket/prefix", storage_lake="s3://bucket/prefix/lake"
    )
    assert find_lake(tmp_path, chosen) == "s3://bucket/prefix/lake"
