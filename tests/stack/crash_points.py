"""`noetl` as its users start it, with a hook at the crash points: it kills itself where an order says so.

    python -m tests.stack.crash_points ORDER server start --port 8082

ORDER is a file that need not exist. `append.after 3` in it means: die by SIGKILL at the third
passing of that point from now on. The process removes the file before it dies, so the process that
is started next goes on.

ORDER.began holds the time when this process had loaded its modules and had done nothing yet: tests
of recovery do not count how fast a machine loads modules. CRASH_ACTIVATIONS is the number of steps
that an execution may run instead of a million.
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


class CrashOrder:
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
    faults.install_fault_hook(CrashOrder(order))
    if activations := os.environ.get("CRASH_ACTIVATIONS"):
        states.PinnedPlaybook = partial(
            PinnedPlaybook, limits=ExecutionLimits(activations=int(activations))
        )
    order.with_suffix(".began").write_text(
        str(time.monotonic())
    )  # one clock for all processes of a machine
    sys.argv = ["noetl", *sys.argv[2:]]
    main()
