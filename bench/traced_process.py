"""A `noetl` process that notes when it passes the points of a step: started by `bench/trace.py`.

    python bench/traced_process.py FILE server start --port 8082

Points are the crash points of `noetl.faults`, and the ways into and out of a process. A line of FILE
is a point and the machine's monotonic clock in nanoseconds, which all processes share.
"""

import atexit
import sys
import time
from collections.abc import Awaitable, Callable
from functools import wraps
from pathlib import Path
from typing import Any

from noetl import cli, faults
from noetl.server.workers.exchange import Exchange
from noetl.tools.python.process import PoolProcess
from noetl.worker.http import HttpChannel

passed: list[tuple[str, int]] = []


def note_point(name: str) -> None:
    passed.append((name, time.monotonic_ns()))


def note_exchange(
    owner: type, entering: str, leaving: str, exchange: Callable[..., Awaitable[Any]]
) -> None:
    """Note when exchanges with reports begin and end. Polls are no part of a step. The request is the
    last argument."""

    @wraps(exchange)
    async def noted(*args: Any) -> Any:
        if not args[-1].reports:
            return await exchange(*args)
        note_point(entering)
        reply = await exchange(*args)
        note_point(leaving)
        return reply

    owner.exchange = noted  # type: ignore[attr-defined]


def note_call(owner: type, method: str, point: str) -> None:
    original = getattr(owner, method)

    @wraps(original)
    def noted(*args: Any) -> Any:
        note_point(point)
        return original(*args)

    setattr(owner, method, noted)


def main() -> None:
    file = Path(sys.argv.pop(1))
    faults.install_fault_hook(note_point)
    note_exchange(HttpChannel, "worker.sends", "worker.receives", HttpChannel.exchange)
    note_exchange(Exchange, "server.receives", "server.replies", Exchange.exchange)
    note_call(PoolProcess, "start_batch", "child.called")
    note_call(PoolProcess, "_handle_frames", "child.answered")
    atexit.register(
        lambda: file.write_text("".join(f"{name} {at}\n" for name, at in passed), encoding="utf-8")
    )
    cli.main()


if __name__ == "__main__":
    main()
