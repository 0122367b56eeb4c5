"""Runs a program of Postgres as another user if needed, and never longer than this process lives.

Postgres refuses to run as root, and other users cannot enter root's directories. So if this process
is root, the program runs as another user and gets its data directory as an open file:
`/proc/self/fd/N` leads there without passing the parent directories. Nothing outside the data
directory changes its owner or mode.
"""

import ctypes
import os
import pwd
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen
from typing import IO, Any

from msgspec import Struct

from noetl.embedded.home import HomeUnusable
from noetl.model.errors import Unavailable

# The environment of this process is not passed on: it may hold PG* variables and secrets.
PROGRAM_ENVIRONMENT: Mapping[str, str] = {
    "PATH": os.defpath,
    "LC_ALL": "C",
    "TZ": "UTC",
}
PR_SET_PDEATHSIG = 1
PF_EXITING = 4
LINUX = sys.platform == "linux"


class Account(Struct, frozen=True):
    uid: int
    gid: int


class FinishedProgram(Struct, frozen=True):
    code: int
    output: str
    errors: str


def choose_server_account(data: Path) -> Account | None:
    """The user that the server runs as: the owner of its data, or `nobody`. None if it runs as the
    user of this process, which is not root."""
    if os.geteuid() != 0:
        return None
    if not LINUX:
        raise HomeUnusable(
            "Postgres does not run as root",
            hint="run noetl as an ordinary user, or set NOETL_DB_URL",
        )
    if data.exists():
        owner = data.stat()
        if owner.st_uid != 0:
            return Account(owner.st_uid, owner.st_gid)
    try:
        nobody = pwd.getpwnam("nobody")
    except KeyError as missing:
        raise Unavailable(
            "Postgres does not run as root, and there is no user `nobody` to run it as",
            hint="add that user, run noetl as an ordinary one, or set NOETL_DB_URL",
        ) from missing
    return Account(nobody.pw_uid, nobody.pw_gid)


def get_directory_name(directory: Path, descriptor: int, account: Account | None) -> str:
    """The path of the `descriptor` directory for a program that runs as `account`."""
    if account is None:
        return str(directory)
    return f"/proc/self/fd/{descriptor}"


def spawn(
    command: Sequence[str],
    account: Account | None,
    *,
    descriptor: int | None = None,
    death_signal: signal.Signals = signal.SIGKILL,
    stdin: int = DEVNULL,
    stdout: int | IO[bytes] = PIPE,
    stderr: int | IO[bytes] = PIPE,
) -> Popen[bytes]:
    """Start `command`. It gets `death_signal` when the calling thread ends, also by a kill.

    The program has a session of its own, so that Ctrl-C reaches only noetl, which then stops the
    server in order.
    """
    user: dict[str, Any] = {}
    if account is not None:
        user = {"user": account.uid, "group": account.gid, "extra_groups": []}
    inherited = () if descriptor is None else (descriptor,)
    try:
        return Popen(  # noqa: S603 (our own argument list, no shell)
            command,
            env=PROGRAM_ENVIRONMENT,
            cwd="/",
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            pass_fds=inherited,
            start_new_session=True,
            preexec_fn=tie_to_parent(death_signal),
            **user,
        )
    except PermissionError:
        raise
    except OSError as error:
        as_user = "" if account is None else f" as user {account.uid}"
        raise Unavailable(
            f"cannot run {command[0]}{as_user}: {error.strerror}",
            hint="set NOETL_POSTGRES_BIN to another Postgres,"
            " or NOETL_DB_URL to a database of yours",
        ) from error


def run(
    command: Sequence[str],
    account: Account | None,
    *,
    descriptor: int | None = None,
    text: str = "",
) -> FinishedProgram:
    """Run `command` with `text` as its input, and wait for its end."""
    process = spawn(command, account, descriptor=descriptor, stdin=PIPE)
    output, errors = process.communicate(text.encode())
    return FinishedProgram(
        process.returncode, output.decode(errors="replace"), errors.decode(errors="replace")
    )


def tie_to_parent(death_signal: signal.Signals) -> Callable[[], None] | None:
    """A `preexec_fn` that ties the child to the calling thread. It runs after the change of user,
    which would clear the setting."""
    if not LINUX:
        return None
    prctl, parent = ctypes.CDLL(None).prctl, os.getpid()

    def tie() -> None:
        prctl(PR_SET_PDEATHSIG, int(death_signal))
        if os.getppid() != parent:  # the parent died before the line above
            os._exit(1)

    return tie


def start_watcher(pid: int) -> Popen[bytes]:
    """Start a shell that stops `pid` when its pipe closes, that is when this process ends. For
    systems other than Linux."""
    wait_and_interrupt = ["/bin/sh", "-c", 'read -r _; kill -INT "$0"', str(pid)]
    return Popen(wait_and_interrupt, stdin=PIPE, start_new_session=True)  # noqa: S603


def is_process_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def is_server_of(pid: int, data: Path) -> bool:
    """Whether the process is the server of `data`, as far as can be seen. The pid in a file may
    belong to another program now.

    A process that is ending does not count: clients that lose their session ask at once, before the
    pid is free.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return is_process_alive(pid)
    _, _, after_pid = stat.partition("(")
    name, _, rest = after_pid.rpartition(")")
    fields = rest.split()
    state, flags = fields[0], int(fields[6])
    if state in "ZX" or flags & PF_EXITING:
        return False
    try:
        return Path(f"/proc/{pid}/cwd").samefile(data)
    except OSError:  # a container may forbid this even to root
        return name.startswith("postgres")
