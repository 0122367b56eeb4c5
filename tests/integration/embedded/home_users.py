"""Other processes that use a home, and what one can see of its server."""

import subprocess
import sys
from pathlib import Path

from noetl.embedded.postgres import Postmaster, claim_data_directory, read_postmaster
from tests.waiting import until

HOLD = """
import asyncio, sys
from pathlib import Path
from noetl.embedded import ensure

home = Path(sys.argv[1])
for line in sys.stdin:
    print(asyncio.run(ensure(home)).control, flush=True)
"""


class HomeUser:
    """Another process that uses the home; `ask` makes it call `ensure` and says which address it got."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.popen = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(home)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    def begin(self) -> None:
        assert self.popen.stdin is not None
        self.popen.stdin.write("ensure\n")

    def answer(self) -> str:
        assert self.popen.stdout is not None
        return self.popen.stdout.readline().strip()

    def ask(self) -> str:
        self.begin()
        return self.answer()

    def kill(self) -> None:
        self.popen.kill()
        self.popen.communicate()


def postmaster(home: Path) -> Postmaster:
    said = read_postmaster(home / "postgres" / "data")
    assert said is not None
    return said


def wait_until_closed(home: Path) -> None:
    """Waits until no process of a server has the data open."""

    def nobody_has_it() -> bool:
        with claim_data_directory(home / "postgres" / "data") as claim:
            return not isinstance(claim, Postmaster)

    until(nobody_has_it)


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
