"""The nursery: a small process beside the worker that forks the processes tools run in, and sees to it that none survives.

It runs no code of others. Each process it makes leads a session of its own, has limits, gains no privileges and dies with the
nursery; the nursery ends when the worker's end of the control socket closes, however the worker ended. Whatever a process left
behind (its group, processes that left the group) becomes the nursery's child when it dies, and is killed before its death is
told.

Its processes serve the python tool, or whatever the module named on its command line has for `serve`: what that imports, all of
them have without importing it again.

Messages are JSON, one per packet. From the worker: `{op: spawn, id, kind, folder, env, limits, …}` with descriptors, and
`{op: kill, id, signal}`. To the worker: `{id, status}` when a process and all it started are gone.
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
from contextlib import suppress
from typing import Any

CONTROL = 3
PDEATHSIG, NO_NEW_PRIVS, CHILD_SUBREAPER = 1, 38, 36  # linux/prctl.h
LIMITS = {
    "address_space": resource.RLIMIT_AS,
    "file_size": resource.RLIMIT_FSIZE,
    "open_files": resource.RLIMIT_NOFILE,
}
LARGEST_MESSAGE = 256 * 1024
_prctl = ctypes.CDLL(None).prctl
_prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4


def prctl(option: int, value: int) -> None:
    _prctl(option, value, 0, 0, 0)


class ForkServerProcess:
    def __init__(self, control: socket.socket, root: str, serve: Any) -> None:
        self.control = control
        self.root = root
        self.serve = serve
        self.live: dict[int, int | None] = {}  # pid: id, or None for one that only removes files
        self.folders: dict[int, str] = {}
        self.dead: list[dict[str, int]] = []  # told once nothing of theirs is left

    def run(self) -> None:
        wakeup, woken = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
        poll = select.poll()
        poll.register(self.control, select.POLLIN)
        poll.register(wakeup, select.POLLIN)
        while True:
            for descriptor, _ in poll.poll(20 if self.dead else None):
                if descriptor == wakeup:
                    os.read(wakeup, 4096)
                elif not self.take():
                    return self.close()
            self.reap()

    def take(self) -> bool:
        try:
            data, descriptors, _, _ = socket.recv_fds(self.control, LARGEST_MESSAGE, 8)
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
            self.kill(message["id"], message["signal"])
        return True

    # ---- births ------------------------------------------------------------------------------------------------------------

    def spawn(self, message: dict[str, Any], descriptors: list[int]) -> None:
        try:
            os.mkdir(message["folder"], 0o700)
            pid = os.fork()
            if pid == 0:
                self.child(message, descriptors)
            self.live[pid] = message["id"]
            self.folders[pid] = message["folder"]
        except OSError:  # no room for another process or folder
            self.tell({"id": message["id"], "status": 126})
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def child(self, message: dict[str, Any], descriptors: list[int]) -> None:
        """Never returns."""
        code = 127
        try:
            nursery = os.getppid()
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGPIPE):
                signal.signal(number, signal.SIG_DFL)
            os.setsid()
            prctl(PDEATHSIG, signal.SIGKILL)
            if os.getppid() != nursery:
                os._exit(127)
            prctl(NO_NEW_PRIVS, 1)
            prctl(CHILD_SUBREAPER, 1)
            place(descriptors)
            os.chdir(message.get("cwd") or message["folder"])
            limit(message["limits"])
            if message["kind"] == "exec":
                os.execvpe(message["argv"][0], message["argv"], message["env"])  # noqa: S606 - what `shell` asked for
            os.environ.clear()
            os.environ.update(message["env"])
            signal.signal(signal.SIGPIPE, signal.SIG_IGN)
            self.serve(message["memory"], message["limits"].get("cpu_seconds"))
            code = 0
        except FileNotFoundError as error:
            os.write(2, f"{error.strerror}: {error.filename}\n".encode("utf-8", "replace"))
        except OSError as error:
            os.write(2, f"{error.strerror}: {error.filename or ''}\n".encode("utf-8", "replace"))
            code = 126
        finally:
            os._exit(code)

    # ---- deaths ------------------------------------------------------------------------------------------------------------

    def kill(self, wanted: int, number: int) -> None:
        for pid, known in self.live.items():
            if known == wanted:
                group_kill(pid, number)

    def reap(self) -> None:
        while (found := ended()) is not None:
            group_kill(
                found, signal.SIGKILL
            )  # before it is reaped: until then nobody else can have its number
            _, status = os.waitpid(found, 0)
            if found not in self.live:
                continue
            known = self.live.pop(found)
            if known is not None:
                self.dead.append({"id": known, "status": os.waitstatus_to_exitcode(status)})
                self.remove(self.folders.pop(found))
        if self.dead and not self.kill_orphans():
            dead, self.dead = self.dead, []
            for message in dead:
                self.tell(message)

    def kill_orphans(self) -> bool:
        """Processes that outlived the one that started them. True while there are any."""
        orphans = [pid for pid in children() if pid not in self.live]
        for pid in orphans:
            signal_to(pid, signal.SIGKILL)
        return bool(orphans)

    def remove(self, folder: str) -> None:
        try:
            os.rmdir(folder)
        except OSError:  # not empty: that may take long
            pid = os.fork()
            if pid == 0:
                try:
                    prctl(PDEATHSIG, signal.SIGKILL)
                    remove_tree(folder)
                finally:
                    os._exit(0)
            self.live[pid] = None

    def tell(self, message: dict[str, int]) -> None:
        with suppress(OSError):  # the worker is gone: the next read says so
            self.control.send(json.dumps(message).encode())

    def close(self) -> None:
        """The worker is gone or has closed its end: nothing may outlive this."""
        for pid in self.live:
            group_kill(pid, signal.SIGKILL)
        while (found := ended(wait=True)) is not None:
            group_kill(found, signal.SIGKILL)
            os.waitpid(found, 0)
            self.live.pop(found, None)
            self.kill_orphans()
        remove_tree(self.root)


def ended(*, wait: bool = False) -> int | None:
    """A child that has ended and is not reaped yet."""
    try:
        found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT | (0 if wait else os.WNOHANG))
    except ChildProcessError:
        return None
    return found.si_pid if found is not None else None


def group_kill(pid: int, number: int) -> None:
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        signal_to(pid, number)  # it has not come to lead its group yet


def signal_to(pid: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def children() -> list[int]:
    """Of this process; by /proc, since nothing else tells."""
    own, found = os.getpid(), []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    fields = file.read().rpartition(b")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == own:
                found.append(int(name))
    return found


def place(descriptors: list[int]) -> None:
    """Standard input is empty; the given ones follow as 1, 2, 3 …; everything else is closed."""
    highest = max(descriptors, default=2) + len(descriptors) + 8
    moved = [os.dup2(descriptor, highest + number) for number, descriptor in enumerate(descriptors)]
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    for number, descriptor in enumerate(moved, start=1):
        os.dup2(descriptor, number)
    os.closerange(len(moved) + 1, max(highest + len(moved) + 8, 64))


def limit(limits: dict[str, int | None]) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for name, kind in LIMITS.items():
        if (value := limits.get(name)) is not None:
            _, hard = resource.getrlimit(kind)
            value = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(kind, (value, value))


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


def beside(name: str) -> Any:
    """A module of this folder, which is not on the path: names in it must not hide the standard library's."""
    from importlib.machinery import SourceFileLoader

    loader = SourceFileLoader(
        name, os.path.join(os.path.dirname(os.path.abspath(__file__)), f"{name}.py")
    )
    module = type(sys)(name)
    module.__file__ = loader.path
    exec(loader.get_code(name), module.__dict__)  # type: ignore[arg-type]  # noqa: S102 - our own source; it has code
    sys.modules[name] = module
    return module


def main() -> None:
    os.setsid()
    prctl(CHILD_SUBREAPER, 1)
    prctl(NO_NEW_PRIVS, 1)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the worker decides; its end is ours
    control = socket.socket(fileno=CONTROL)
    serve = (
        importlib.import_module(sys.argv[2]).serve
        if len(sys.argv) > 2
        else beside("python_child").serve
    )
    import traceback  # noqa: F401 - what most failures would make every child import

    gc.collect()
    gc.freeze()
    control.setblocking(False)
    ForkServerProcess(control, sys.argv[1], serve).run()


if __name__ == "__main__":
    main()
