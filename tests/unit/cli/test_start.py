"""What happens before the first command is loaded."""

import os
import subprocess
import sys
from pathlib import Path


def test_compiled_modules_are_kept_where_python_may_not_leave_them_beside_their_sources(
    tmp_path: Path,
) -> None:
    known = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment = {**known, "PYTHONDONTWRITEBYTECODE": "1", "XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "noetl", "--version"],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("noetl ")
    assert any((tmp_path / "noetl" / "python").rglob("cli/__init__*.pyc"))


def test_who_says_where_they_go_is_heard(tmp_path: Path) -> None:
    places = {
        "PYTHONPYCACHEPREFIX": str(tmp_path / "mine"),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }
    command = [sys.executable, "-m", "noetl", "--version"]
    assert (
        subprocess.run(command, env={**os.environ, **places}, capture_output=True).returncode == 0
    )
    assert not (tmp_path / "cache").exists()
