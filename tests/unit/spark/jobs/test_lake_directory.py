"""A lake in a directory."""

from pathlib import Path

import pytest

from noetl.model.errors import Conflict
from noetl.spark.jobs.lake import claim_lake
from noetl.spark.jobs.lake_directory import DirectoryLake


def test_small_file_is_written_once(tmp_path: Path) -> None:
    lake = DirectoryLake(tmp_path)
    assert lake.put_if_absent("a/1.json", b"first")
    assert not lake.put_if_absent("a/1.json", b"second")
    assert [file.read_bytes() for file in (tmp_path / "a").iterdir()] == [b"first"]
    assert lake.list_files("a/") == ["a/1.json"]
    assert lake.list_files("b/") == []


def test_lake_belongs_to_the_first_database_that_claims_it(tmp_path: Path) -> None:
    lake = DirectoryLake(tmp_path)
    claim_lake(lake, "me")
    claim_lake(lake, "me")
    with pytest.raises(Conflict, match="belongs to another database"):
        claim_lake(lake, "another")
