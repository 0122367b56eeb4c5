"""The package as it is published: it has the page, and only what builds the page needs Node."""

import os
import shutil
import subprocess
import tarfile
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parents[2]
NOT_COPIED = shutil.ignore_patterns(
    ".git", ".venv", "node_modules", "build", "dist*", "__pycache__", ".*_cache"
)

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout in which nothing is built."""
    copied = tmp_path_factory.mktemp("checkout") / "noetl"
    shutil.copytree(ROOT, copied, ignore=NOT_COPIED)
    shutil.rmtree(copied / "src" / "noetl" / "ui", ignore_errors=True)
    return copied


@pytest.fixture(scope="module")
def built(copy: Path) -> Path:
    run_uv("build", "--out-dir", copy / "out", copy)
    return copy / "out"


def run_uv(*arguments: object, **environment: str) -> None:
    uv = os.environ.get("UV") or shutil.which("uv")
    assert uv is not None
    known = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
    done = subprocess.run(
        [uv, *map(str, arguments)], env={**known, **environment}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def list_page(wheel: Path) -> list[str]:
    return [name for name in ZipFile(wheel).namelist() if name.startswith("noetl/ui/")]


def test_the_wheel_has_the_page(built: Path) -> None:
    [wheel] = built.glob("*.whl")
    names = list_page(wheel)
    assert "noetl/ui/dist/index.html" in names
    assert any(name.startswith("noetl/ui/dist/assets/") and name.endswith(".js") for name in names)
    assert not [name for name in names if not name.startswith("noetl/ui/dist/")]


def test_a_wheel_from_the_source_distribution_needs_no_node(built: Path, tmp_path: Path) -> None:
    [source] = built.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        names = archive.getnames()
        archive.extractall(tmp_path, filter="data")
    assert not [name for name in names if "node_modules" in name]
    [folder] = tmp_path.iterdir()
    run_uv("build", "--wheel", "--out-dir", tmp_path / "out", folder)
    [wheel] = (tmp_path / "out").glob("*.whl")
    assert list_page(wheel) == list_page(next(built.glob("*.whl")))
    assert not (folder / "ui" / "node_modules").exists()


def test_a_package_without_the_page_can_be_built(copy: Path, tmp_path: Path) -> None:
    source = tmp_path / "noetl"
    shutil.copytree(copy, source, ignore=shutil.ignore_patterns("node_modules", "dist*", "out"))
    run_uv("build", "--wheel", "--out-dir", tmp_path / "out", source, NOETL_UI="skip")
    [wheel] = (tmp_path / "out").glob("*.whl")
    assert list_page(wheel) == []
    assert not (source / "ui" / "node_modules").exists()


def test_an_editable_install_builds_no_page(copy: Path, tmp_path: Path) -> None:
    source = tmp_path / "noetl"
    shutil.copytree(copy, source, ignore=shutil.ignore_patterns("node_modules", "dist*", "out"))
    run_uv("venv", tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    run_uv("pip", "install", "--python", python, "--no-deps", "--editable", source)
    assert not (source / "src" / "noetl" / "ui" / "dist").exists()
    assert not (source / "ui" / "node_modules").exists()
