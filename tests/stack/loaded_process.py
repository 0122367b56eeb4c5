"""A process that has loaded `noetl` and forks a process of it for each request.

    python -m tests.stack.loaded_process DESCRIPTOR

The suite starts more than a thousand processes. Most of the processor time of a short one is the
loading of modules, which is the same for all. A fork is a process of its own in every other way: it
has its own environment, folder, descriptors and memory, and can be killed.

DESCRIPTOR is a socket. A request is one message: a `ForkRequest` as JSON, with the descriptors of
stdin, stdout and stderr and one for the exit code. The answer is the number of the process. When
the process ends, its exit code is written to the last descriptor; -9 stands for SIGKILL.
"""

import gc
import json
import os
import runpy
import selectors
import signal
import socket
import sys
import time
from importlib import import_module
from io import BufferedReader, BufferedWriter, FileIO, TextIOWrapper

from noetl.cli import ALL_MODULES
from tests.stack.fork_request import ForkRequest

MAX_REQUEST_BYTES = 1 << 20
DESCRIPTORS = 4  # stdin, stdout, stderr, exit code
# Arrow and its like start threads when they are loaded, and a fork has none of them.
STARTS_THREADS = ("jobs",)
LOADED_MODULES = (
    *[f"noetl.cli.{name}" for name in ALL_MODULES if name not in STARTS_THREADS],
    "noetl.cli.folder",
    "noetl.client.http",
    "noetl.client.local",
    "noetl.runtime.server_with_worker",
    "noetl.runtime.serving",
    "noetl.runtime.worker_process",
    "noetl.worker.http",
)


class ExitCodes:
    """Writes the exit code of each process to the descriptor that belongs to it."""

    def __init__(self) -> None:
        self._descriptors: dict[int, int] = {}

    def add_process(self, pid: int, descriptor: int) -> None:
        self._descriptors[pid] = descriptor

    def report_ended(self) -> None:
        while self._descriptors:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            descriptor = self._descriptors.pop(pid)
            os.write(descriptor, str(os.waitstatus_to_exitcode(status)).encode())
            os.close(descriptor)


def serve_forks(channel: socket.socket) -> None:
    """Fork until the other end of the channel is closed."""
    exit_codes = ExitCodes()
    wake_reader, wake_writer = os.pipe()
    os.set_blocking(wake_writer, False)
    signal.set_wakeup_fd(wake_writer, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    selector = selectors.DefaultSelector()
    selector.register(channel, selectors.EVENT_READ)
    selector.register(wake_reader, selectors.EVENT_READ)
    while True:
        ready = [key.fileobj for key, _ in selector.select()]
        if wake_reader in ready:
            os.read(wake_reader, 4096)
        exit_codes.report_ended()
        if channel in ready and not _answer_request(channel, exit_codes):
            return


def _answer_request(channel: socket.socket, exit_codes: ExitCodes) -> bool:
    """Fork for one request. False if there will be no more requests."""
    message, descriptors, _, _ = socket.recv_fds(channel, MAX_REQUEST_BYTES, DESCRIPTORS)
    if not message:
        return False
    pid = os.fork()
    if pid == 0:
        _become_process(ForkRequest(*json.loads(message)), descriptors)
    *standard, exit_code = descriptors
    for descriptor in standard:
        os.close(descriptor)
    exit_codes.add_process(pid, exit_code)
    channel.send(str(pid).encode())
    return True


def _become_process(request: ForkRequest, descriptors: list[int]) -> None:
    """Called in the fork: run the program, and end as a process of Python ends."""
    for number, descriptor in enumerate(descriptors[:3]):
        os.dup2(descriptor, number)
    os.closerange(3, max(descriptors) + 1)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(request.folder)
    os.environ.clear()
    os.environ.update(request.environment)
    time.tzset()
    sys.stdin = TextIOWrapper(BufferedReader(FileIO(0, closefd=False)), "utf-8")
    sys.stdout = TextIOWrapper(BufferedWriter(FileIO(1, "w", closefd=False)), "utf-8")
    sys.stderr = TextIOWrapper(
        BufferedWriter(FileIO(2, "w", closefd=False)),
        "utf-8",
        "backslashreplace",
        line_buffering=True,
    )
    sys.argv = [request.module, *request.arguments]
    code = 1
    try:
        runpy.run_module(request.module, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        code = _read_exit_code(end)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        _end_process(code)


def _read_exit_code(end: SystemExit) -> int:
    if end.code is None:
        return 0
    if isinstance(end.code, int):
        return end.code
    print(end.code, file=sys.stderr)
    return 1


def _end_process(code: int) -> None:
    """End as the interpreter does: wait for threads, call what is registered for the exit, flush."""
    threading = sys.modules["threading"]
    threading._shutdown()
    atexit = import_module("atexit")
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            code = code or 120
    os._exit(code)


if __name__ == "__main__":
    for module in LOADED_MODULES:
        import_module(module)
    assert len(os.listdir("/proc/self/task")) == 1, "a module starts threads when it is loaded"
    gc.collect()
    gc.freeze()  # what is loaded stays, and collections of forks do not copy its pages
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests
    serve_forks(socket.socket(fileno=int(sys.argv[1])))
