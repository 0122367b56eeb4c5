"""Runs a program of Postgres: as whom, on which directory, and no longer than this process lives.

Postgres refuses to be root, and a directory of root's is closed to anybody else. So when we are root, the program becomes
another user and receives its directory as an open file: `/proc/self/fd/N` leads there without passing the parents. Nothing
outside of the directory changes owner or mode.
"""

import ctypes
import os
import pwd
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen
from typing import IO, Any

from noetl.embedded.home import HomeUnusable
from noetl.model.errors import Unavailable

ENVIRONMENT: Mapping[str, str] = {
    "PATH": os.defpath,
    "LC_ALL": "C",
    "TZ": "UTC",
}  # ours may hold PG* and secrets
PR_SET_PDEATHSIG = 1
PF_EXITING = 4
LINUX = sys.platform == "linux"


@dataclass(frozen=True, slots=True)
class Account:
    uid: int
    gid: int


@dataclass(frozen=True, slots=True)
class Finished:
    code: int
    output: str
    errors: str


def server_account(data: Path) -> Account | None:
    """As whom the server runs when not as ourselves: the owner of its data, else `nobody`."""
    if os.geteuid() != 0:
        return None
    if not LINUX:
        raise HomeUnusable(
            "Postgres does not run as root",
            hint="run noetl as an ordinary user, or set NOETL_DB_URL",
        )
    if data.exists() and (owner := data.stat()).st_uid != 0:
        return Account(owner.st_uid, owner.st_gid)
    try:
        nobody = pwd.getpwnam("nobody")
    except KeyError as missing:
        raise Unavailable(
            "Postgres does not run as root, and there is no user `nobody` to run it as",
            hint="add that user, run noetl as an ordinary one, or set NOETL_DB_URL",
        ) from missing
    return Account(nobody.pw_uid, nobody.pw_gid)


def directory_name(directory: Path, opened: int, account: Account | None) -> str:
    """How a program running as `account` calls the directory that we have `opened`."""
    return str(directory) if account is None else f"/proc/self/fd/{opened}"


def spawn(
    command: Sequence[str],
    account: Account | None,
    *,
    opened: int | None = None,
    last: signal.Signals = signal.SIGKILL,
    stdin: int = DEVNULL,
    stdout: int | IO[bytes] = PIPE,
    stderr: int | IO[bytes] = PIPE,
) -> Popen[bytes]:
    """Start `command`; it gets the signal `last` when the calling thread ends, hence also when this process is killed.

    In a session of its own: Ctrl-C is for noetl, which then stops its server in order.
    """
    other: dict[str, Any] = {}
    if account is not None:
        other = {"user": account.uid, "group": account.gid, "extra_groups": []}
    try:
        return Popen(  # noqa: S603 (our own argument list, no shell)
            command,
            env=ENVIRONMENT,
            cwd="/",
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            pass_fds=() if opened is None else (opened,),
            start_new_session=True,
            preexec_fn=tied_to_us(last),
            **other,
        )
    except PermissionError:
        raise
    except OSError as error:
        who = "" if account is None else f" as user {account.uid}"
        raise Unavailable(
            f"cannot run {command[0]}{who}: {error.strerror}",
            hint="set NOETL_POSTGRES_BIN to another Postgres, or NOETL_DB_URL to a database of yours",
        ) from error


def run(
    command: Sequence[str], account: Account | None, *, opened: int | None = None, text: str = ""
) -> Finished:
    process = spawn(command, account, opened=opened, stdin=PIPE)
    output, errors = process.communicate(text.encode())
    return Finished(
        process.returncode, output.decode(errors="replace"), errors.decode(errors="replace")
    )


def tied_to_us(last: signal.Signals) -> Callable[[], None] | None:
    """For `preexec_fn`: it runs after the change of user, which would clear the setting, and does next to nothing."""
    if not LINUX:
        return None
    prctl, parent = ctypes.CDLL(None).prctl, os.getpid()

    def tie() -> None:
        prctl(PR_SET_PDEATHSIG, int(last))
        if os.getppid() != parent:  # we died before the line above
            os._exit(1)

    return tie


def watcher(pid: int) -> Popen[bytes]:
    """Elsewhere than on Linux: a shell that waits for the end of our pipe, that is of us, and then stops `pid`."""
    wait_and_interrupt = ["/bin/sh", "-c", 'read -r _; kill -INT "$0"', str(pid)]
    return Popen(wait_and_interrupt, stdin=PIPE, start_new_session=True)  # noqa: S603


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def serves(pid: int, data: Path) -> bool:
    """Whether a living process is the server of `data`, as far as one can tell: a number in a file may be another's by now.

    One that is ending does not count: its sessions are cut a moment before its number is free, and who lost one asks at once.
    """
    try:
        name, _, rest = Path(f"/proc/{pid}/stat").read_text().partition("(")[2].rpartition(")")
    except OSError:
        return alive(pid)
    state, flags = rest.split()[0], int(rest.split()[6])
    if state in "ZX" or flags & PF_EXITING:
        return False
    try:
        return Path(f"/proc/{pid}/cwd").samefile(data)
    except OSError:  # containers may forbid even root to look
        return name.startswith("postgres")
