"""The worker's side of the nursery: processes for tools, each in a group, a session and a folder of its own, with limits.

A process is over when `ended` is set: by then everything it started is gone too. The nursery starts with the first process and
ends when this end of its control socket closes, so nothing outlives the worker, however that ends. Linux only.
"""

import asyncio
import json
import os
import signal
import socket
import sys
import tempfile
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

PROGRAM = str(Path(__file__).with_name("nursery_process.py"))
INHERITED = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "VIRTUAL_ENV", "LD_LIBRARY_PATH")
GRACE = 1.0  # seconds between SIGTERM and SIGKILL
LARGEST_MESSAGE = 100_000


@dataclass(frozen=True, slots=True)
class ProcessLimits:
    """Of one process. None: no limit of ours. `cpu_seconds` is per call of the python tool."""

    address_space: int | None = None
    file_size: int | None = None
    open_files: int | None = 1024
    cpu_seconds: int | None = None


class MessageTooLarge(Exception):
    """What the process is given does not fit into a message."""


@dataclass(slots=True, eq=False)
class Process:
    """`ended` has the exit code, or minus the number of the signal."""

    id: int
    folder: str
    ended: asyncio.Future[int]
    nursery: "ForkServer"

    def kill(self, number: int) -> None:
        if not self.ended.done():
            self.nursery.send({"op": "kill", "id": self.id, "signal": number})

    async def stop(self, grace: float = GRACE) -> int:
        """SIGTERM, a moment of grace, SIGKILL. Whoever asked must not leave before it is over, so cancelling waits too."""
        self.kill(signal.SIGTERM)
        stopping = asyncio.ensure_future(self._stopped(grace))
        try:
            return await asyncio.shield(stopping)
        except asyncio.CancelledError:
            self.kill(signal.SIGKILL)
            await stopping
            raise

    async def _stopped(self, grace: float) -> int:
        done, _ = await asyncio.wait([self.ended], timeout=grace)
        if not done:
            self.kill(signal.SIGKILL)
        return await self.ended


@dataclass(slots=True)
class _Started:
    """One running nursery, on one event loop."""

    loop: asyncio.AbstractEventLoop
    control: socket.socket
    root: str
    pid: int
    backlog: deque[tuple[bytes, list[int]]] = field(default_factory=deque)


def _shut(control: socket.socket) -> None:
    control.close()


class ForkServer:
    """`serving` names a module whose `serve` its processes run, instead of what the python tool needs."""

    def __init__(self, serving: str | None = None, env: Mapping[str, str] | None = None) -> None:
        self._arguments = [] if serving is None else [serving]
        self._env = dict(env or {})
        self._started: _Started | None = None
        self._processes: dict[int, Process] = {}
        self._count = 0
        self._finalizer: weakref.finalize[Any, Any] | None = None

    # ---- processes ---------------------------------------------------------------------------------------------------------

    def spawn(
        self,
        kind: str,
        descriptors: Sequence[int],
        env: Mapping[str, str],
        limits: ProcessLimits,
        **more: Any,
    ) -> Process:
        """`descriptors` become 1, 2, 3 … of the process and are closed here. Its environment is `env` and what every program
        needs to find its way."""
        try:
            started = self._start()
            self._count += 1
            folder = os.path.join(started.root, f"p{self._count}")
            message = {
                "op": "spawn",
                "id": self._count,
                "kind": kind,
                "folder": folder,
                "limits": asdict(limits),
                "env": {**inherited(), **self._env, "TMPDIR": folder, **env},
                **more,
            }
            data = json.dumps(message).encode()
            if len(data) > LARGEST_MESSAGE:
                raise MessageTooLarge
            process = Process(self._count, folder, started.loop.create_future(), self)
            self._processes[process.id] = process
            copies = [os.dup(descriptor) for descriptor in descriptors]
            started.backlog.append((data, copies))
            self._flush()
            return process
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def send(self, message: dict[str, Any]) -> None:
        if self._started is not None:
            self._started.backlog.append((json.dumps(message).encode(), []))
            self._flush()

    def _flush(self) -> None:
        started = self._started
        assert started is not None
        while started.backlog:
            data, descriptors = started.backlog[0]
            try:
                socket.send_fds(started.control, [data], descriptors)
            except (BlockingIOError, InterruptedError):
                started.loop.add_writer(started.control, self._flush)
                return
            except OSError:
                self._lost()
                return
            started.backlog.popleft()
            for descriptor in descriptors:
                os.close(descriptor)
        started.loop.remove_writer(started.control)

    # ---- the nursery itself ------------------------------------------------------------------------------------------------

    def _start(self) -> _Started:
        loop = asyncio.get_running_loop()
        if self._started is not None and self._started.loop is loop:
            return self._started
        self._forget()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        root = tempfile.mkdtemp(prefix="noetl-")
        with theirs:
            theirs.setblocking(False)
            ours.setblocking(False)
            pid = os.posix_spawn(
                sys.executable,
                [sys.executable, "-I", PROGRAM, root, *self._arguments],
                {**inherited(), **self._env},
                file_actions=[(os.POSIX_SPAWN_DUP2, theirs.fileno(), 3)],
            )
        self._finalizer = weakref.finalize(self, _shut, ours)
        self._started = _Started(loop, ours, root, pid)
        loop.add_reader(ours, self._told)
        return self._started

    def _told(self) -> None:
        started = self._started
        while started is not None:
            try:
                data = started.control.recv(4096)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                data = b""
            if not data:
                self._lost()
                return
            message = json.loads(data)
            process = self._processes.pop(message["id"], None)
            if process is not None and not process.ended.done():
                process.ended.set_result(message["status"])

    def _lost(self) -> None:
        """The nursery is dead, and with it, by the kernel's hand, every process it made."""
        started, self._started = self._started, None
        if started is not None:
            _release(started)
        lost, self._processes = self._processes, {}
        for process in lost.values():
            if not process.ended.done():
                process.ended.set_result(-signal.SIGKILL)

    def _forget(self) -> None:
        """One that belonged to an event loop which is over."""
        started, self._started = self._started, None
        self._processes = {}
        if started is not None:
            started.control.close()
            _drop_backlog(started)
            _reap(started.pid, wait=False)

    async def close(self) -> None:
        """Ends every process; returns when all are gone."""
        started = self._started
        if started is None or started.loop is not asyncio.get_running_loop():
            return
        self._started = None
        _release(started)
        await asyncio.to_thread(_reap, started.pid, wait=True)
        lost, self._processes = self._processes, {}
        for process in lost.values():
            if not process.ended.done():
                process.ended.set_result(-signal.SIGKILL)


def inherited() -> dict[str, str]:
    return {name: os.environ[name] for name in INHERITED if name in os.environ}


def _release(started: _Started) -> None:
    started.loop.remove_reader(started.control)
    started.loop.remove_writer(started.control)
    started.control.close()
    _drop_backlog(started)
    _reap(started.pid, wait=False)


def _drop_backlog(started: _Started) -> None:
    for _, descriptors in started.backlog:
        for descriptor in descriptors:
            os.close(descriptor)


def _reap(pid: int, *, wait: bool) -> None:
    with suppress(ChildProcessError):
        os.waitpid(pid, 0 if wait else os.WNOHANG)
