"""The worker's side of the fork server, which makes the processes of tools.

Each process has its own process group, session and folder, and has limits. A process is over when
`ended` is set: by then every process that it started is gone too. The fork server starts with the
first process and ends when the worker's end of the control socket closes, so no process outlives
the worker, even if the worker is killed. Linux only.
"""

import asyncio
import os
import signal
import socket
import sys
import tempfile
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from noetl.tools.processes.messages import (
    ExitMessage,
    KillMessage,
    ProcessLimits,
    SpawnMessage,
    encode_control_message,
)

FORK_SERVER_PROGRAM = str(Path(__file__).with_name("fork_server_process.py"))
INHERITED_VARIABLES = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "VIRTUAL_ENV", "LD_LIBRARY_PATH")
STOP_GRACE_S = 1.0  # seconds between SIGTERM and SIGKILL
MAX_SENT_MESSAGE_BYTES = 100_000


class MessageTooLarge(Exception):
    """The request for a process does not fit into one message to the fork server."""


@dataclass(slots=True, eq=False)
class Process:
    """A process of the fork server.

    `ended` resolves to the exit code, or minus the signal number.
    """

    id: int
    folder: str
    ended: asyncio.Future[int]
    fork_server: "ForkServer"

    def kill(self, number: int) -> None:
        if not self.ended.done():
            self.fork_server.send_kill(KillMessage(self.id, number))

    async def stop(self, grace: float = STOP_GRACE_S) -> int:
        """Send SIGTERM, wait for `grace` seconds, then send SIGKILL. Returns the exit status.

        A cancelled caller also waits until the process has ended.
        """
        self.kill(signal.SIGTERM)
        stopping = asyncio.ensure_future(self._wait_or_kill(grace))
        try:
            return await asyncio.shield(stopping)
        except asyncio.CancelledError:
            self.kill(signal.SIGKILL)
            await stopping
            raise

    async def _wait_or_kill(self, grace: float) -> int:
        done, _ = await asyncio.wait([self.ended], timeout=grace)
        if not done:
            self.kill(signal.SIGKILL)
        return await self.ended


@dataclass(slots=True)
class _RunningServer:
    """A running fork server, bound to one event loop."""

    loop: asyncio.AbstractEventLoop
    control: socket.socket
    root: str
    pid: int
    backlog: deque[tuple[bytes, list[int]]] = field(default_factory=deque)


def _close_control(control: socket.socket) -> None:
    control.close()


class ForkServer:
    """Starts the fork server on first use.

    Its processes run the function `serve` of the module that `serving` names. The default is the
    one of the python tool.
    """

    def __init__(self, serving: str | None = None, env: Mapping[str, str] | None = None) -> None:
        self._arguments: list[str] = []
        if serving is not None:
            self._arguments.append(serving)
        self._env = dict(env or {})
        self._running_server: _RunningServer | None = None
        self._processes: dict[int, Process] = {}
        self._count = 0
        self._finalizer: weakref.finalize[Any, Any] | None = None

    # ---- processes -------------------------------------------------------------------------------

    def spawn(
        self,
        kind: str,
        descriptors: Sequence[int],
        env: Mapping[str, str],
        limits: ProcessLimits,
        *,
        highest: ProcessLimits | None = None,
        memory: int = 0,
        argv: Sequence[str] = (),
        cwd: str | None = None,
    ) -> Process:
        """Start a process.

        `descriptors` become 1, 2, 3 … of the process and are closed here. Its environment is `env`
        and the inherited variables. It may raise its `limits` up to `highest`, if that is given.
        """
        try:
            started = self._ensure_running()
            self._count += 1
            folder = os.path.join(started.root, f"p{self._count}")
            message = SpawnMessage(
                id=self._count,
                kind=kind,
                folder=folder,
                env={**inherited_environment(), **self._env, "TMPDIR": folder, **env},
                limits=limits,
                highest=highest or limits,
                memory=memory,
                argv=list(argv),
                cwd=cwd,
            )
            data = encode_control_message(message)
            if len(data) > MAX_SENT_MESSAGE_BYTES:
                raise MessageTooLarge
            process = Process(self._count, folder, started.loop.create_future(), self)
            self._processes[process.id] = process
            copies = [os.dup(descriptor) for descriptor in descriptors]
            started.backlog.append((data, copies))
            self._flush_backlog()
            return process
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def send_kill(self, message: KillMessage) -> None:
        if self._running_server is not None:
            data = encode_control_message(message)
            self._running_server.backlog.append((data, []))
            self._flush_backlog()

    def _flush_backlog(self) -> None:
        started = self._running_server
        assert started is not None
        while started.backlog:
            data, descriptors = started.backlog[0]
            try:
                socket.send_fds(started.control, [data], descriptors)
            except (BlockingIOError, InterruptedError):
                started.loop.add_writer(started.control, self._flush_backlog)
                return
            except OSError:
                self._on_server_death()
                return
            started.backlog.popleft()
            for descriptor in descriptors:
                os.close(descriptor)
        started.loop.remove_writer(started.control)

    # ---- the fork server itself ------------------------------------------------------------------

    def _ensure_running(self) -> _RunningServer:
        loop = asyncio.get_running_loop()
        if self._running_server is not None and self._running_server.loop is loop:
            return self._running_server
        self._drop_stale_server()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        root = tempfile.mkdtemp(prefix="noetl-")
        with theirs:
            theirs.setblocking(False)
            ours.setblocking(False)
            pid = os.posix_spawn(
                sys.executable,
                [sys.executable, "-I", FORK_SERVER_PROGRAM, root, *self._arguments],
                {**inherited_environment(), **self._env},
                file_actions=[(os.POSIX_SPAWN_DUP2, theirs.fileno(), 3)],
            )
        self._finalizer = weakref.finalize(self, _close_control, ours)
        self._running_server = _RunningServer(loop, ours, root, pid)
        loop.add_reader(ours, self._read_messages)
        return self._running_server

    def _read_messages(self) -> None:
        """Read the messages that processes have ended."""
        started = self._running_server
        while started is not None:
            try:
                data = started.control.recv(4096)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                data = b""
            if not data:
                self._on_server_death()
                return
            message = msgspec.json.decode(data, type=ExitMessage)
            process = self._processes.pop(message.id, None)
            if process is not None and not process.ended.done():
                process.ended.set_result(message.status)

    def _on_server_death(self) -> None:
        """Handle the death of the fork server. The kernel has killed all its processes with it."""
        started = self._running_server
        self._running_server = None
        if started is not None:
            _release_server(started)
        self._end_processes()

    def _end_processes(self) -> None:
        processes = self._processes
        self._processes = {}
        for process in processes.values():
            if not process.ended.done():
                process.ended.set_result(-signal.SIGKILL)

    def _drop_stale_server(self) -> None:
        """Drop a fork server of an event loop that has ended."""
        started = self._running_server
        self._running_server = None
        self._processes = {}
        if started is not None:
            started.control.close()
            _drop_backlog(started)
            _reap_server(started.pid, wait=False)

    async def close(self) -> None:
        """End every process. Returns when all are gone."""
        started = self._running_server
        if started is None or started.loop is not asyncio.get_running_loop():
            return
        self._running_server = None
        _release_server(started)
        await asyncio.to_thread(_reap_server, started.pid, wait=True)
        self._end_processes()


def inherited_environment() -> dict[str, str]:
    """The variables of the worker's environment that every process gets."""
    return {name: os.environ[name] for name in INHERITED_VARIABLES if name in os.environ}


def _release_server(started: _RunningServer) -> None:
    started.loop.remove_reader(started.control)
    started.loop.remove_writer(started.control)
    started.control.close()
    _drop_backlog(started)
    _reap_server(started.pid, wait=False)


def _drop_backlog(started: _RunningServer) -> None:
    for _, descriptors in started.backlog:
        for descriptor in descriptors:
            os.close(descriptor)


def _reap_server(pid: int, *, wait: bool) -> None:
    options = 0 if wait else os.WNOHANG
    with suppress(ChildProcessError):
        os.waitpid(pid, options)
