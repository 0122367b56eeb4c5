"""A home that cannot be used: said in one sentence, with what to do, and nothing half made is left."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from noetl.embedded.home import HomeFull, HomeUnusable, explain_errors, locate_home
from noetl.embedded.postgres import EmbeddedPostgres
from tests.disk import fill, small_disk


@pytest.fixture
def disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", request.param) as place:
        yield place


@pytest.mark.parametrize("disk", [24], indirect=True)
def test_a_disk_too_small_is_refused_before_anything_is_made(disk: Path) -> None:
    home = disk / "home"
    with pytest.raises(HomeFull, match=r"is full: \d+ MB free, \d+ MB needed") as refused:
        EmbeddedPostgres(home).ensure_postgres()

    assert "NOETL_HOME" in str(refused.value.hint)
    assert [path.name for path in home.iterdir()] == ["postgres.lock"]


@pytest.mark.parametrize("disk", [24], indirect=True)
def test_a_disk_that_fills_up_while_making_leaves_nothing_half_made(
    disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("noetl.embedded.cluster.MIN_CLUSTER_BYTES", 0)
    home = disk / "home"
    with pytest.raises(HomeFull, match="No space left"):
        EmbeddedPostgres(home).ensure_postgres()

    assert [path.name for path in home.iterdir()] == ["postgres.lock"]


@pytest.mark.parametrize("disk", [160], indirect=True)
def test_a_full_disk_is_named_and_with_space_it_starts_again(disk: Path) -> None:
    embedded = EmbeddedPostgres(disk / "home")
    embedded.ensure_postgres()
    embedded.stop_postgres()
    filler = disk / "filler"
    fill(filler)
    with pytest.raises(HomeFull, match="No space left"):
        embedded.ensure_postgres()

    filler.unlink()
    embedded.ensure_postgres()
    embedded.stop_postgres()


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for home in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(HomeUnusable, match="cannot use") as refused:
            EmbeddedPostgres(home).ensure_postgres()
        assert "a file is in the way" in str(refused.value.hint)


def test_a_name_too_long_is_named(tmp_path: Path) -> None:
    with pytest.raises(HomeUnusable, match="too long") as refused:
        EmbeddedPostgres(tmp_path / ("x" * 300)).ensure_postgres()
    assert "shorter" in str(refused.value.hint)


def test_a_deep_home_is_fine(tmp_path: Path) -> None:
    embedded = EmbeddedPostgres(tmp_path / ("d" * 100) / ("e" * 100))
    embedded.ensure_postgres()
    embedded.stop_postgres()


@pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS])
def test_a_home_that_is_not_writable_is_named(code: int) -> None:
    with (
        pytest.raises(HomeUnusable, match="cannot use /somewhere as home") as refused,
        explain_errors(Path("/somewhere")),
    ):
        raise OSError(code, os.strerror(code), "/somewhere/postgres.lock")
    assert "writable" in str(refused.value.hint)


def test_home_is_where_the_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOETL_HOME", str(tmp_path))
    assert locate_home() == tmp_path
    monkeypatch.delenv("NOETL_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert locate_home() == tmp_path / ".noetl"


def test_a_directory_that_is_no_database_is_named(tmp_path: Path) -> None:
    (tmp_path / "postgres" / "data").mkdir(parents=True)
    with pytest.raises(HomeUnusable, match="not a data directory"):
        EmbeddedPostgres(tmp_path).ensure_postgres()
