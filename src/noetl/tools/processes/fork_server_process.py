"""The fork server: a small process beside the worker that forks the processes of tools.

It runs no code of playbooks, and no process survives it. Each process leads its own session, has
limits, gains no privileges and dies with the fork server. Other processes of the same user cannot read
the memory and the environment of the fork server and of the processes that serve requests. The fork server ends when the worker's
end of the control socket closes, which happens however the worker ends.

When a process dies, the processes that it started become children of the fork server, also those
that left its process group. The fork server kills them before it reports the death.

The processes serve the python tool, or run the function `serve` of the module that the command line
names. They are forked after that module is imported, so they do not import it again.

Messages are JSON, one per packet; `messages.py` has them for the worker. A message that spawns a
process has its descriptors beside it.
"""

import ctypes
import gc
import importlib
import json
import os
import resource
import select
import signal
import socket
import sys
import time
from contextlib import suppress
from typing import Any, TypedDict

CONTROL_DESCRIPTOR = 3
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = (
    1,
    4,
    36,
    38,
)  # linux/prctl.h
RLIMITS_BY_NAME = {
    "memory": resource.RLIMIT_DATA,  # unlike RLIMIT_AS, it does not count what is only reserved
    "file_size": resource.RLIMIT_FSIZE,
    "open_files": resource.RLIMIT_NOFILE,
    "processes": resource.RLIMIT_NPROC,
}
MAX_COUNT_AGE_S = 10.0  # seconds for which the number of the user's processes is used
MAX_RECEIVED_MESSAGE_BYTES = 256 * 1024
KILL_AFTER_CPU_S = 5  # seconds of processor time that a program has after SIGXCPU
ORPHAN_POLL_MS = 20  # how often orphans are looked for: their end sends no signal
_prctl = ctypes.CDLL(None).prctl
_prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4


def prctl(option: int, value: int) -> None:
    _prctl(option, value, 0, 0, 0)


class SpawnFields(TypedDict):
    id: int
    kind: str
    folder: str
    env: dict[str, str]
    limits: dict[str, int | None]
    highest: dict[str, int | None]
    memory: int
    argv: list[str]
    cwd: str | None


class ExitFields(TypedDict):
    id: int
    status: int


class ForkServerProcess:
    def __init__(self, control: socket.socket, root: str, serve: Any) -> None:
        self.control = control
        self.root = root
        self.serve = serve
        self.live: dict[int, int | None] = {}  # id by pid; None for a process that removes files
        self.folders: dict[int, str] = {}
        self.unreported_exits: list[ExitFields] = []  # reported when their orphans are gone
        self.other_threads = 0  # of this user
        self.counted_at = float("-inf")

    def run(self) -> None:
        wakeup, wakeup_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wakeup_end, warn_on_full_buffer=False)
        poll = select.poll()
        poll.register(self.control, select.POLLIN)
        poll.register(wakeup, select.POLLIN)
        while True:
            timeout = ORPHAN_POLL_MS if self.unreported_exits else None
            for descriptor, _ in poll.poll(timeout):
                if descriptor == wakeup:
                    os.read(wakeup, 4096)
                elif not self.handle_message():
                    return self.close()
            self.reap_children()

    def handle_message(self) -> bool:
        """Handle one message of the worker. False if the worker is gone."""
        try:
            data, descriptors, _, _ = socket.recv_fds(self.control, MAX_RECEIVED_MESSAGE_BYTES, 8)
        except BlockingIOError:
            return True
        except OSError:
            return False
        if not data:
            return False
        message = json.loads(data)
        if message["op"] == "spawn":
            self.spawn(message, descriptors)
        else:
            self.kill_process(message["id"], message["signal"])
        return True

    # ---- starting processes ----------------------------------------------------------------------

    def spawn(self, message: SpawnFields, descriptors: list[int]) -> None:
        try:
            os.mkdir(message["folder"], 0o700)
            self.count_other_threads()
            pid = os.fork()
            if pid == 0:
                self.run_child(message, descriptors)
            self.live[pid] = message["id"]
            self.folders[pid] = message["folder"]
        except OSError:  # no room for another process or folder
            self.send_exit({"id": message["id"], "status": 126})
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def count_other_threads(self) -> None:
        """Count the threads of this user. The system's limit of processes counts them as well.

        It does not hold for root.
        """
        now = time.monotonic()
        if os.geteuid() != 0 and now - self.counted_at > MAX_COUNT_AGE_S:
            self.other_threads = count_threads_of_user(os.geteuid())
            self.counted_at = now

    def run_child(self, message: SpawnFields, descriptors: list[int]) -> None:
        """Run the forked process. Never returns."""
        code = 127
        try:
            fork_server = os.getppid()
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGPIPE):
                signal.signal(number, signal.SIG_DFL)
            os.setsid()
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != fork_server:  # it died before PDEATHSIG was set
                os._exit(127)
            prctl(PR_SET_NO_NEW_PRIVS, 1)
            prctl(PR_SET_CHILD_SUBREAPER, 1)
            install_descriptors(descriptors)
            os.chdir(message["cwd"] or message["folder"])
            limits = self.add_other_threads(message["limits"])
            set_limits(limits, self.add_other_threads(message["highest"]))
            if message["kind"] == "exec":
                set_cpu_limit(limits)
                argv = message["argv"]
                os.execvpe(argv[0], argv, message["env"])  # noqa: S606 - the command of a shell task
            os.environ.clear()
            os.environ.update(message["env"])
            signal.signal(signal.SIGPIPE, signal.SIG_IGN)
            self.serve(message["memory"], message["limits"], self.other_threads)
            code = 0
        except FileNotFoundError as error:
            os.write(2, f"{error.strerror}: {error.filename}\n".encode("utf-8", "replace"))
        except OSError as error:
            os.write(2, f"{error.strerror}: {error.filename or ''}\n".encode("utf-8", "replace"))
            code = 126
        finally:
            os._exit(code)

    def add_other_threads(self, limits: dict[str, int | None]) -> dict[str, int | None]:
        """The limits as the system counts: with the user's other processes."""
        processes = limits.get("processes")
        if processes is None:
            return limits
        return {**limits, "processes": processes + self.other_threads}

    # ---- ending processes ------------------------------------------------------------------------

    def kill_process(self, process_id: int, number: int) -> None:
        for pid, known_id in self.live.items():
            if known_id == process_id:
                signal_group(pid, number)

    def reap_children(self) -> None:
        while (pid := find_exited_child()) is not None:
            # The pid cannot be reused before the process is reaped.
            signal_group(pid, signal.SIGKILL)
            _, status = os.waitpid(pid, 0)
            if pid not in self.live:
                continue
            process_id = self.live.pop(pid)
            if process_id is not None:
                exit_code = os.waitstatus_to_exitcode(status)
                self.unreported_exits.append({"id": process_id, "status": exit_code})
                self.remove_folder(self.folders.pop(pid))
        if self.unreported_exits and not self.kill_orphans():
            dead, self.unreported_exits = self.unreported_exits, []
            for message in dead:
                self.send_exit(message)

    def kill_orphans(self) -> bool:
        """Kill the processes that outlived their parents. True if there were any."""
        orphans = [pid for pid in list_child_pids() if pid not in self.live]
        for pid in orphans:
            signal_process(pid, signal.SIGKILL)
        return bool(orphans)

    def remove_folder(self, folder: str) -> None:
        try:
            os.rmdir(folder)
        except OSError:  # it is not empty; removing it may take long, so another process does it
            pid = os.fork()
            if pid == 0:
                try:
                    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
                    remove_tree(folder)
                finally:
                    os._exit(0)
            self.live[pid] = None

    def send_exit(self, message: ExitFields) -> None:
        with suppress(OSError):  # the worker is gone: the next read finds out
            self.control.send(json.dumps(message).encode())

    def close(self) -> None:
        """End every process and remove all folders. The worker is gone or has closed its end."""
        for pid in self.live:
            signal_group(pid, signal.SIGKILL)
        while (ended_pid := find_exited_child(wait=True)) is not None:
            signal_group(ended_pid, signal.SIGKILL)
            os.waitpid(ended_pid, 0)
            self.live.pop(ended_pid, None)
            self.kill_orphans()
        remove_tree(self.root)


def find_exited_child(*, wait: bool = False) -> int | None:
    """The pid of a child that has ended and is not reaped yet."""
    options = os.WEXITED | os.WNOWAIT
    if not wait:
        options |= os.WNOHANG
    try:
        child = os.waitid(os.P_ALL, 0, options)
    except ChildProcessError:
        return None
    if child is None:
        return None
    return child.si_pid


def signal_group(pid: int, number: int) -> None:
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        signal_process(pid, number)  # it does not lead its group yet


def signal_process(pid: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def list_child_pids() -> list[int]:
    """The pids of this process's children, from /proc: there is no system call for it.

    Only this process removes entries from the kernel's list, by waiting for a child. So reading the
    list while children end skips none.
    """
    own_pid = os.getpid()
    try:
        with open(f"/proc/self/task/{own_pid}/children", "rb") as file:
            return [int(pid) for pid in file.read().split()]
    except OSError:  # the kernel is built without it
        return scan_child_pids(own_pid)


def scan_child_pids(own_pid: int) -> list[int]:
    """The pids of this process's children, found by reading the parent of every process."""
    pids = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                stat = file.read()
        except OSError:
            continue
        _, _, after_name = stat.rpartition(b")")
        parent_pid = int(after_name.split()[1])
        if parent_pid == own_pid:
            pids.append(int(name))
    return pids


def install_descriptors(descriptors: list[int]) -> None:
    """Make standard input empty, move `descriptors` to 1, 2, 3 … and close all others."""
    highest = max(descriptors, default=2) + len(descriptors) + 8
    moved = [os.dup2(descriptor, highest + number) for number, descriptor in enumerate(descriptors)]
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    for number, descriptor in enumerate(moved, start=1):
        os.dup2(descriptor, number)
    first_unused = len(moved) + 1
    os.closerange(first_unused, max(highest + len(moved) + 8, 64))


def set_limits(limits: dict[str, int | None], highest: dict[str, int | None]) -> None:
    """Set the limits, and up to where the process may raise them."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for name, kind in RLIMITS_BY_NAME.items():
        _, hard = resource.getrlimit(kind)
        hard = find_lower(highest.get(name), hard)
        soft = find_lower(limits.get(name), hard)
        resource.setrlimit(kind, (soft, hard))


def find_lower(value: int | None, limit: int) -> int:
    """The lower of a value, which may be none, and a limit of the system, which may be infinite."""
    if value is None:
        return limit
    if limit == resource.RLIM_INFINITY:
        return value
    return min(value, limit)


def set_cpu_limit(limits: dict[str, int | None]) -> None:
    """Limit the processor time of a program. It gets SIGXCPU, and is killed if it ignores that."""
    seconds = limits.get("cpu_seconds")
    if seconds is not None:
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + KILL_AFTER_CPU_S))


def count_threads_of_user(uid: int) -> int:
    """The number of threads of all processes of a user."""
    threads = 0
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/status", "rb") as file:
                fields = dict(line.split(b":", 1) for line in file if b":" in line)
        except OSError:
            continue
        if int(fields[b"Uid"].split()[0]) == uid:
            threads += int(fields[b"Threads"])
    return threads


def remove_tree(root: str) -> None:
    for folder, folders, files in os.walk(root, topdown=False):
        for name in (*files, *folders):
            path = os.path.join(folder, name)
            try:
                if os.path.isdir(path) and not os.path.islink(path):
                    os.rmdir(path)
                else:
                    os.unlink(path)
            except OSError:
                pass
    with suppress(OSError):
        os.rmdir(root)


def load_python_child() -> Any:
    """Load the module that runs Python code, `tools/python/child.py`, without the package `noetl`.

    Its folder is not on the path, because its modules would hide those of the standard library. The
    module that it imports from the package is loaded first, under the name that it imports.
    """
    tools = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    formats = os.path.join(os.path.dirname(tools), "results", "formats")
    buffers = os.path.join(formats, "column_buffers.py")
    load_source("noetl.results.formats.column_buffers", buffers)
    child = load_source("python_child", os.path.join(tools, "python", "child.py"))
    child.trim_heap = getattr(ctypes.CDLL(None), "malloc_trim", child.trim_heap)
    return child


def load_source(name: str, path: str) -> Any:
    from importlib.machinery import SourceFileLoader

    loader = SourceFileLoader(name, path)
    module = type(sys)(name)
    module.__file__ = loader.path
    sys.modules[name] = module
    exec(loader.get_code(name), module.__dict__)  # type: ignore[arg-type]  # noqa: S102 - our own source; it has code
    return module


def main() -> None:
    os.setsid()
    prctl(PR_SET_DUMPABLE, 0)  # forked processes inherit it; a program that one executes does not
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # this process ends with the worker only
    control = socket.socket(fileno=CONTROL_DESCRIPTOR)
    if len(sys.argv) > 2:
        module = importlib.import_module(sys.argv[2])
    else:
        module = load_python_child()
    serve = module.serve
    import traceback  # noqa: F401 - imported here, so that no child imports it when a call fails

    gc.collect()
    gc.freeze()
    control.setblocking(False)
    ForkServerProcess(control, sys.argv[1], serve).run()


if __name__ == "__main__":
    main()
