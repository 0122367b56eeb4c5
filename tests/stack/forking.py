"""Starts processes of `noetl` as forks of one that has loaded it: see `loaded_process.py`."""

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from functools import cache
from pathlib import Path
from typing import IO, Any, TypeAlias

from tests.processes import environment
from tests.stack.fork_request import ForkRequest

ROOT = Path(__file__).parents[2]
EXIT_CODE_BYTES = 16


class ForkedProcess:
    """A fork, with the part of `subprocess.Popen` that tests use."""

    def __init__(
        self,
        request: ForkRequest,
        *,
        stdin: int | None = None,
        stdout: int = subprocess.PIPE,
        stderr: int = subprocess.PIPE,
        text: bool = True,
    ) -> None:
        self.args = [request.module, *request.arguments]
        self.returncode: int | None = None
        given_in, self.stdin = _open_input(stdin, text)
        given_out, self.stdout = _open_output(stdout, text)
        given_err, self.stderr = _open_output(stderr, text)
        self._exit_code, given_code = os.pipe()
        given = [given_in, given_out, given_err, given_code]
        self.pid = _get_loaded_process(os.getpid()).fork(request, given)
        for descriptor, passed in zip(given, (stdin, stdout, stderr, None), strict=True):
            if passed is None or passed == subprocess.PIPE:
                os.close(descriptor)

    def poll(self) -> int | None:
        return self._read_exit_code(0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._read_exit_code(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return code

    def _read_exit_code(self, timeout: float | None) -> int | None:
        if self.returncode is None:
            ready, _, _ = select.select([self._exit_code], [], [], timeout)
            if ready:
                self.returncode = int(os.read(self._exit_code, EXIT_CODE_BYTES))
                os.close(self._exit_code)
        return self.returncode

    def communicate(self, text: str | None = None, timeout: float | None = None) -> tuple[Any, Any]:
        """Send the text, read both outputs to their ends, and wait for the exit code."""
        readers = [_StreamReader(stream) for stream in (self.stdout, self.stderr)]
        if self.stdin is not None:
            self._send_input(text)
        for reader in readers:
            reader.join(timeout)
            if reader.is_alive():
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
        self.wait(timeout)
        out, err = [reader.content for reader in readers]
        return out, err

    def _send_input(self, text: str | None) -> None:
        assert self.stdin is not None
        try:
            if text is not None:
                self.stdin.write(text)
            self.stdin.close()
        except BrokenPipeError:
            pass  # it has ended without reading

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> "ForkedProcess":
        return self

    def __exit__(self, *_: object) -> None:
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream is not None:
                stream.close()
        self.wait()


RunningCommand: TypeAlias = ForkedProcess | subprocess.Popen[Any]


def start_module(
    request: ForkRequest,
    *,
    stdin: int | None = None,
    stdout: int = subprocess.PIPE,
    stderr: int = subprocess.PIPE,
) -> RunningCommand:
    """Start a module as a fork of the process that has loaded it.

    PYTHONPATH says what is loaded, so it needs a process that loads by itself.
    """
    if "PYTHONPATH" not in request.environment:
        return ForkedProcess(request, stdin=stdin, stdout=stdout, stderr=stderr)
    return subprocess.Popen(
        [sys.executable, "-m", request.module, *request.arguments],
        env=request.environment,
        cwd=request.folder,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        text=True,
    )


class _StreamReader(threading.Thread):
    """Reads a stream to its end."""

    def __init__(self, stream: IO[Any] | None) -> None:
        super().__init__(daemon=True)
        self._stream = stream
        self.content: Any = None
        self.start()

    def run(self) -> None:
        if self._stream is not None:
            self.content = self._stream.read()
            self._stream.close()


def _open_input(passed: int | None, text: bool) -> tuple[int, IO[Any] | None]:
    """The descriptor for the process, and the stream for the test. Without an input it is empty."""
    if passed is None:
        return os.open(os.devnull, os.O_RDONLY), None
    if passed != subprocess.PIPE:
        return passed, None
    reader, writer = os.pipe()
    return reader, _open_stream(writer, "w", text)


def _open_output(passed: int, text: bool) -> tuple[int, IO[Any] | None]:
    if passed != subprocess.PIPE:
        return passed, None
    reader, writer = os.pipe()
    return writer, _open_stream(reader, "r", text)


def _open_stream(descriptor: int, mode: str, text: bool) -> IO[Any]:
    if text:
        return open(descriptor, mode, encoding="utf-8")
    return open(descriptor, f"{mode}b")


class LoadedProcess:
    """The process that is forked. It ends with the process of the tests."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._channel, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()
        command = [sys.executable, "-m", "tests.stack.loaded_process", str(other.fileno())]
        self._process = subprocess.Popen(
            command,
            env=environment,
            cwd=ROOT,
            pass_fds=[other.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        other.close()
        atexit.register(self._end)

    def _end(self) -> None:
        self._channel.close()
        self._process.wait()

    def fork(self, request: ForkRequest, descriptors: list[int]) -> int:
        message = json.dumps(request).encode()
        with self._lock:
            socket.send_fds(self._channel, [message], descriptors)
            return int(self._channel.recv(EXIT_CODE_BYTES))


@cache
def _get_loaded_process(pid: int) -> LoadedProcess:
    """The one of this process: a fork of it must not use the same channel."""
    return LoadedProcess(environment())
