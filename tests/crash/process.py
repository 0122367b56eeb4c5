"""`noetl` as its users start it, with a hook at the crash points: it dies by kill -9 where an order says so.

    python -m tests.crash.process ORDER server start --port 8082

ORDER is a file that need not be there. It says `append.after 3`: die at the third passing of that point from now on. It is gone
when that has happened, so whoever is started next lives. ORDER.began says when this process began to work: its modules loaded,
nothing done yet. How fast a machine loads modules is no matter of recovery. CRASH_ACTIVATIONS: how many steps an execution may
run instead of a million.
"""

import os
import signal
import sys
import time
from functools import partial
from pathlib import Path

import noetl.client.local
import noetl.runtime.server
import noetl.worker.http  # noqa: F401 - loaded, as the two above, before this process has begun
from noetl import faults
from noetl.cli import main
from noetl.engine.state import ExecutionLimits, PinnedPlaybook
from noetl.server.dispatch import states


class Executioner:
    def __init__(self, order: Path) -> None:
        self._order = order
        self._text = ""
        self._passed = 0

    def __call__(self, name: str) -> None:
        try:
            text = self._order.read_text()
        except FileNotFoundError:
            return
        if text != self._text:
            self._text, self._passed = text, 0
        point, nth = text.split()
        self._passed += point == name
        if self._passed >= int(nth):
            self._order.unlink()
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    order = Path(sys.argv[1])
    faults.install_fault_hook(Executioner(order))
    if activations := os.environ.get("CRASH_ACTIVATIONS"):
        states.PinnedPlaybook = partial(
            PinnedPlaybook, limits=ExecutionLimits(activations=int(activations))
        )
    order.with_suffix(".began").write_text(
        str(time.monotonic())
    )  # one clock for all processes of a machine
    sys.argv = ["noetl", *sys.argv[2:]]
    main()
