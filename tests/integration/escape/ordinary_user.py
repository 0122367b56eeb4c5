"""Runs programs as an ordinary user, also where tests run as root."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.play import workflow
from tests.processes import environment

NOBODY = 65534


def as_ordinary_user(*command: str) -> list[str]:
    """The command, run by an ordinary user.

    It may read files that only root can read, because root's Python may be one of them. It has no
    other privilege; above all it cannot inspect processes.
    """
    if os.getuid() != 0:
        return list(command)
    reading = "-all,+dac_read_search"
    user = [f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    capabilities = [f"--inh-caps={reading}", "--ambient-caps=+dac_read_search"]
    return ["setpriv", *user, *capabilities, f"--bounding-set={reading}", *command]


@contextmanager
def make_ordinary_folder() -> Iterator[Path]:
    """A folder of the ordinary user."""
    folder = Path(tempfile.mkdtemp(prefix="noetl-test-ordinary-"))
    if os.getuid() == 0:
        os.chown(folder, NOBODY, NOBODY)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def make_environment(folder: Path) -> dict[str, str]:
    home = {"NOETL_HOME": str(folder / "home"), "HOME": str(folder)}
    secret = {"NOETL_CREDENTIAL_CANARY": '{"token": "canary-77ae01"}'}
    return environment(**home, **secret, PYTHONPYCACHEPREFIX=str(folder / "compiled"))


def run_playbook(folder: Path, steps: list[dict[str, Any]]) -> dict[str, Any]:
    playbook = folder / "playbook.yaml"
    playbook.write_text(workflow(json.dumps(steps)))
    noetl = [sys.executable, "-m", "noetl", "run", "--memory", str(playbook), "--json"]
    done = subprocess.run(
        as_ordinary_user(*noetl), env=make_environment(folder), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found
