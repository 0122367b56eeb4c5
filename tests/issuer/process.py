"""Starts the issuer of `issuer.mjs`. Its packages are installed once, from the lock beside it, below build/."""

import fcntl
import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = Path(__file__).parent
PLACE = ROOT / "build" / "issuer"
FILES = ("package.json", "package-lock.json", ".npmrc", "issuer.mjs")
INSTALL = ("ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")


def _load_page_build() -> ModuleType:
    """`ui/build.py`, which finds Node."""
    spec = importlib.util.spec_from_file_location("page_build", ROOT / "ui" / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["page_build"] = module
    spec.loader.exec_module(module)
    return module


@contextmanager
def run_issuer() -> Iterator[str]:
    """The address of an issuer that runs. Skips the test where there is no Node, or no packages for it."""
    build = _load_page_build()
    try:
        node = build.find_node(ROOT, lambda _: None)
        _install_packages(node)
    except (build.BuildFailed, subprocess.CalledProcessError) as error:
        pytest.skip(f"no issuer: {error}")
    process = subprocess.Popen(
        [str(node.node), "issuer.mjs"],
        cwd=PLACE,
        env=node.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _install_packages(node: object) -> None:
    """Of several test processes one installs them."""
    PLACE.mkdir(parents=True, exist_ok=True)
    with (PLACE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        wanted = (SOURCES / "package-lock.json").read_bytes()
        installed = PLACE / "installed-lock.json"
        for name in FILES:
            shutil.copyfile(SOURCES / name, PLACE / name)
        if installed.exists() and installed.read_bytes() == wanted:
            return
        subprocess.run(
            [*node.npm, *INSTALL],  # type: ignore[attr-defined]  # of ui/build.py
            cwd=PLACE,
            env=node.environment,  # type: ignore[attr-defined]
            check=True,
            capture_output=True,
        )
        installed.write_bytes(wanted)
