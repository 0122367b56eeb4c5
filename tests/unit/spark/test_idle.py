"""Processes like those of Spark, below this one."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from noetl.spark.server.idle_daemons import DAEMON_IDLE_S, SWEEP_INTERVAL_S, IdleDaemons
from tests.waiting import HANG_LIMIT_S

WAITS = "import sys; print(flush=True); sys.stdin.read()"
FORKS = "import subprocess; child = subprocess.Popen(['cat']); print(flush=True); child.wait()"


@pytest.fixture
def ending() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def start_process(ending: ExitStack, code: str, name: str) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-c", code, name]
    process = ending.enter_context(
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    )
    ending.callback(process.terminate)
    assert process.stdout is not None
    process.stdout.readline()
    return process


@pytest.mark.skipif(sys.platform != "linux", reason="where processes can be looked at")
def test_what_has_forked_nothing_for_a_while_is_ended(ending: ExitStack) -> None:
    idle = start_process(ending, WAITS, "pyspark.daemon")
    other = start_process(ending, WAITS, "something")
    busy = start_process(ending, FORKS, "pyspark.daemon")
    sweeps = IdleDaemons(os.getpid())

    begin = 10 * SWEEP_INTERVAL_S
    assert sweeps.end_idle(begin) == []
    assert sweeps.end_idle(begin + DAEMON_IDLE_S - SWEEP_INTERVAL_S) == []
    assert sweeps.end_idle(begin + DAEMON_IDLE_S) == [idle.pid]
    assert idle.wait(HANG_LIMIT_S) < 0
    assert other.poll() is None
    assert busy.poll() is None


@pytest.mark.skipif(sys.platform != "linux", reason="where processes can be looked at")
def test_looks_are_far_between(ending: ExitStack) -> None:
    start_process(ending, WAITS, "pyspark.daemon")
    sweeps = IdleDaemons(os.getpid())
    assert sweeps.end_idle(DAEMON_IDLE_S) == []
    assert sweeps.end_idle(2 * DAEMON_IDLE_S - 1) == []
    assert sweeps.end_idle(2 * DAEMON_IDLE_S) == []  # a moment after the last one
