"""The messages of the worker and the fork server, on the worker's side.

`fork_server_process.py` has the same messages as typed dicts, because the fork server loads nothing but the
standard library. A message is JSON, one per packet; its texts may hold lone surrogates, as names of
files do.
"""

import json

import msgspec
from msgspec import Struct


class ProcessLimits(Struct, frozen=True):
    """Limits of one process; None sets no limit. `cpu_seconds` is per call of the python tool.

    `memory` are bytes of private memory: shared memory, such as rows of an input, does not count.
    `processes` are those of the step, with their threads. `file_size` are bytes of one file.
    """

    memory: int | None = None
    file_size: int | None = None
    open_files: int | None = 1024
    cpu_seconds: int | None = None
    processes: int | None = None


class SpawnMessage(Struct, frozen=True, tag_field="op", tag="spawn", kw_only=True):
    """Starts a process. A process of kind `exec` runs `argv`; others serve requests.

    A process that serves requests may raise its `limits` up to `highest`.
    """

    id: int
    kind: str
    folder: str
    env: dict[str, str]
    limits: ProcessLimits
    highest: ProcessLimits
    memory: int
    argv: list[str]
    cwd: str | None


class KillMessage(Struct, frozen=True, tag_field="op", tag="kill"):
    """Sends a signal to a process and to all in its process group."""

    id: int
    signal: int


class ExitMessage(Struct, frozen=True):
    """A process is gone, and so is every process that it started."""

    id: int
    status: int


def encode_control_message(message: SpawnMessage | KillMessage) -> bytes:
    return json.dumps(msgspec.to_builtins(message)).encode()
