"""Folders are private whatever the umask, also those above them."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from noetl.private_folders import make_private_folder
from noetl.results.staging import Staging
from noetl.spark.server.server_state import SparkServerState


@pytest.fixture(params=[0o000, 0o022, 0o077, 0o777], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


def read_mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_every_new_folder_is_private(umask: None, tmp_path: Path) -> None:
    make_private_folder(tmp_path / "home" / "results" / "staging")
    for path in (tmp_path / "home").rglob("*"):
        assert read_mode(path) == 0o700
    assert read_mode(tmp_path / "home") == 0o700


def test_existing_folder_keeps_its_mode(umask: None, tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o755)
    make_private_folder(tmp_path / "shared" / "results")
    make_private_folder(tmp_path / "shared" / "results")
    assert read_mode(tmp_path / "shared") == 0o755
    assert read_mode(tmp_path / "shared" / "results") == 0o700


def test_folders_of_a_home_are_private(umask: None, tmp_path: Path) -> None:
    Staging(tmp_path / "home" / "results" / "staging").begin_draft().discard()
    SparkServerState.from_home(tmp_path / "home")
    for name in (".", "results", "results/staging", "spark"):
        assert read_mode(tmp_path / "home" / name) == 0o700, name
