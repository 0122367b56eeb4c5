"""Limits of the processes of steps: which a task has, and the failure of a task that reaches one."""

import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec import Struct

from noetl.model.errors import Failure
from noetl.playbook import durations
from noetl.playbook.sizes import parse_bytes, write_bytes
from noetl.tools.processes.messages import ProcessLimits

CONTAINER_LIMIT_FILES = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
DAY_S = 86_400
DEFAULT_PROCESSES = 1024
DEFAULT_FILE_BYTES = 256 << 30
DEFAULT_OPEN_FILES = 1024


class LimitKind(Struct, frozen=True):
    """A limit: its name in playbooks, the setting that bounds it, and the code of a failure."""

    name: str
    setting: str
    code: str
    noun: str


LIMIT_KINDS = {
    "memory": LimitKind("memory", "NOETL_STEP_MAX_MEMORY_BYTES", "MEMORY_LIMIT", "memory"),
    "cpu_seconds": LimitKind("cpu", "NOETL_STEP_MAX_CPU_SEC", "CPU_LIMIT", "processor time"),
    "processes": LimitKind("processes", "NOETL_STEP_MAX_PROCESSES", "PROCESS_LIMIT", "processes"),
    "file_size": LimitKind(
        "file_size", "NOETL_STEP_MAX_FILE_BYTES", "FILE_SIZE_LIMIT", "file size"
    ),
    "open_files": LimitKind(
        "open_files", "NOETL_STEP_MAX_OPEN_FILES", "OPEN_FILES_LIMIT", "open files"
    ),
}


class LimitTooHigh(Exception):
    """A task asks for more than the operator allows."""

    def __init__(self, field: str, wanted: int, highest: int) -> None:
        kind = LIMIT_KINDS[field]
        allowed = _write_value(field, highest)
        message = (
            f"`limits.{kind.name}` is {_write_value(field, wanted)}, and this worker allows {allowed};"
            f" lower it, or let the operator raise {kind.setting}"
        )
        super().__init__(message)
        self.failure = Failure(code="LIMIT_TOO_HIGH", kind="config", message=message)


class StepLimits(Struct, frozen=True):
    """`usual` are the limits of a task that sets none, `highest` those that one may set."""

    usual: ProcessLimits
    highest: ProcessLimits

    def choose_limits(self, wanted: Mapping[str, Any] | None) -> ProcessLimits:
        """The limits of a task with this `limits`. Raises LimitTooHigh."""
        if not wanted:
            return self.usual
        chosen: dict[str, int | None] = {}
        for field, kind in LIMIT_KINDS.items():
            given = wanted.get(kind.name)
            highest = getattr(self.highest, field)
            if given is None:
                chosen[field] = getattr(self.usual, field)
                continue
            value = _parse_value(field, given)
            if highest is not None and value > highest:
                raise LimitTooHigh(field, value, highest)
            chosen[field] = value
        return ProcessLimits(**chosen)

    def describe_reached(self, field: str, limits: ProcessLimits) -> str | None:
        """Which limit was reached and how to raise it; None if there is no such limit."""
        value = getattr(limits, field)
        if value is None:
            return None
        kind = LIMIT_KINDS[field]
        highest = getattr(self.highest, field)
        up_to = ""
        if highest is not None:
            up_to = f", up to {_write_value(field, highest)} ({kind.setting} of the worker)"
        limit = _write_value(field, value)
        return f"the limit of {kind.noun} is {limit}; raise it with `limits: {{{kind.name}: …}}` of the task{up_to}"


def make_step_limits(highest: ProcessLimits | None = None) -> StepLimits:
    """The limits of a machine under the operator's `highest`.

    The usual limits leave room for any ordinary work with data. They stop what runs away.
    """
    machine_bytes = read_machine_memory()
    highest = highest or ProcessLimits(open_files=None)
    if highest.memory is None:
        highest = ProcessLimits(
            memory=machine_bytes,
            file_size=highest.file_size,
            open_files=highest.open_files,
            cpu_seconds=highest.cpu_seconds,
            processes=highest.processes,
        )
    usual = ProcessLimits(
        memory=_lower(machine_bytes // 2, highest.memory),
        cpu_seconds=_lower(DAY_S * (os.cpu_count() or 1), highest.cpu_seconds),
        processes=_lower(DEFAULT_PROCESSES, highest.processes),
        file_size=_lower(DEFAULT_FILE_BYTES, highest.file_size),
        open_files=_lower(DEFAULT_OPEN_FILES, highest.open_files),
    )
    return StepLimits(usual, highest)


def read_machine_memory() -> int:
    """The bytes of memory of this machine, or of the container in which this process runs."""
    size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for file in CONTAINER_LIMIT_FILES:
        with suppress(OSError, ValueError):  # there is no such file, or it says `max`
            size = min(size, int(file.read_text()))
    return size


def find_limit_of_status(status: int) -> str | None:
    """The limit that ended a process with this exit status.

    A shell reports the death of its program by a signal as 128 and the number of the signal.
    """
    if status in (-signal.SIGXCPU, 128 + signal.SIGXCPU):
        return "cpu_seconds"
    if status in (-signal.SIGXFSZ, 128 + signal.SIGXFSZ):
        return "file_size"
    return None


def _lower(value: int, highest: int | None) -> int:
    return value if highest is None else min(value, highest)


def _parse_value(field: str, given: Any) -> int:
    if field in ("memory", "file_size"):
        return parse_bytes(given)
    if field == "cpu_seconds":
        return max(1, durations.parse_micros(given) // 1_000_000)
    return int(given)


def _write_value(field: str, value: int) -> str:
    if field in ("memory", "file_size"):
        return write_bytes(value)
    if field == "cpu_seconds":
        return f"{value} s"
    return str(value)
