"""`NOETL_HOME`: the directory of everything that NoETL keeps on this machine, private to its
user."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from noetl.model.errors import InvalidInput, Unavailable


class HomeUnusable(InvalidInput):
    """The home directory cannot be used. A person has to change it or choose another one."""

    code = "HOME_UNUSABLE"


class HomeFull(Unavailable):
    """The disk of the home directory is full."""

    code = "HOME_FULL"


def locate_home() -> Path:
    """The path of home: `NOETL_HOME`, or `~/.noetl` by default."""
    configured = os.environ.get("NOETL_HOME")
    try:
        return Path(configured or "~/.noetl").expanduser().absolute()
    except RuntimeError as unknown_user:
        raise HomeUnusable(
            f"no home directory: {unknown_user}", hint="set NOETL_HOME to a directory of yours"
        ) from unknown_user


def prepare_home(home: Path) -> None:
    """Create home, readable only by its user. An existing directory keeps its mode, which may be a
    choice of its owner."""
    with explain_errors(home):
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not os.access(home, os.R_OK | os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(home))


def require_space(home: Path, needed: int) -> None:
    """Raise HomeFull before work begins that needs more space than is free."""
    disk = os.statvfs(home)
    free = disk.f_bavail * disk.f_frsize
    if free < needed:
        raise make_home_full(home, f"{free >> 20} MB free, {needed >> 20} MB needed")


def make_home_full(home: Path, detail: str) -> HomeFull:
    return HomeFull(
        f"the disk of {home} is full: {detail}",
        hint="free some space there, or set NOETL_HOME to a directory on another disk",
        home=home,
    )


@contextmanager
def explain_errors(home: Path) -> Iterator[None]:
    """Translate errors of the file system below home into errors that name the remedy."""
    try:
        yield
    except OSError as error:
        where, why = error.filename or home, error.strerror or str(error)
        match error.errno:
            case errno.ENOSPC | errno.EDQUOT:
                raise make_home_full(home, f"{where}: {why}") from error
            case errno.EACCES | errno.EPERM | errno.EROFS:
                remedy = "make it writable for this user, or set NOETL_HOME to a directory that is"
            case errno.ENOENT:
                remedy = "nothing can be made there: set NOETL_HOME to another directory"
            case errno.ENAMETOOLONG:
                remedy = "set NOETL_HOME to a shorter path"
            case errno.EEXIST | errno.ENOTDIR:
                remedy = "a file is in the way: move it, or set NOETL_HOME to another directory"
            case _:
                raise
        raise HomeUnusable(
            f"cannot use {home} as home: {where}: {why}", hint=remedy, home=home
        ) from error
