"""What the first load of the execution page costs."""

import subprocess
import sys
from pathlib import Path

from tests.stack import ROOT


def test_the_first_load_is_within_its_budget(built_page: Path) -> None:
    """`ui/scripts/budget.mjs` has the bound and says what each file costs."""
    command = [sys.executable, str(ROOT / "ui" / "build.py"), "npm", "run", "--silent", "budget"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "first load of the execution page" in done.stdout
