"""Processes like those of Spark, below this one."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from noetl.spark.idle import EVERY, PATIENCE, Idle

WAITS = "import sys; print(flush=True); sys.stdin.read()"
FORKS = "import subprocess; child = subprocess.Popen(['cat']); print(flush=True); child.wait()"


@pytest.fixture
def ending() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def started(ending: ExitStack, code: str, name: str) -> "subprocess.Popen[bytes]":
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
    idle = started(ending, WAITS, "pyspark.daemon")
    other = started(ending, WAITS, "something")
    busy = started(ending, FORKS, "pyspark.daemon")
    sweeps = Idle(os.getpid())

    begin = 10 * EVERY
    assert sweeps.sweep(begin) == []
    assert sweeps.sweep(begin + PATIENCE - EVERY) == []
    assert sweeps.sweep(begin + PATIENCE) == [idle.pid]
    assert idle.wait(10) < 0
    assert other.poll() is None
    assert busy.poll() is None


@pytest.mark.skipif(sys.platform != "linux", reason="where processes can be looked at")
def test_looks_are_far_between(ending: ExitStack) -> None:
    started(ending, WAITS, "pyspark.daemon")
    sweeps = Idle(os.getpid())
    assert sweeps.sweep(PATIENCE) == []
    assert sweeps.sweep(2 * PATIENCE - 1) == []
    assert sweeps.sweep(2 * PATIENCE) == []  # a moment after the last one
