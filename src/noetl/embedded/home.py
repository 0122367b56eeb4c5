"""`NOETL_HOME`: the one directory that holds what NoETL keeps on this machine, private to its user."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from noetl.model.errors import InvalidInput, Unavailable


class HomeUnusable(InvalidInput):
    """The home directory cannot be used as it is; somebody has to change it or choose another."""

    code = "HOME_UNUSABLE"


class HomeFull(Unavailable):
    """No space is left where the home directory lies."""

    code = "HOME_FULL"


def locate() -> Path:
    """Where home is: `NOETL_HOME`, else `~/.noetl`."""
    given = os.environ.get("NOETL_HOME")
    try:
        return Path(given or "~/.noetl").expanduser().absolute()
    except RuntimeError as unknown_user:
        raise HomeUnusable(
            f"no home directory: {unknown_user}", hint="set NOETL_HOME to a directory of yours"
        ) from unknown_user


def prepare(home: Path) -> None:
    """Make home, readable by its user alone. One that is there already keeps its mode: it may be somebody's choice."""
    with explained(home):
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not os.access(home, os.R_OK | os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(home))


def require_space(home: Path, needed: int) -> None:
    """Refuse at once rather than half-way through."""
    disk = os.statvfs(home)
    free = disk.f_bavail * disk.f_frsize
    if free < needed:
        raise full(home, f"{free >> 20} MB free, {needed >> 20} MB needed")


def full(home: Path, detail: str) -> HomeFull:
    return HomeFull(
        f"the disk of {home} is full: {detail}",
        hint="free some space there, or set NOETL_HOME to a directory on another disk",
        home=home,
    )


@contextmanager
def explained(home: Path) -> Iterator[None]:
    """What the file system refuses below home, said in words that name the remedy."""
    try:
        yield
    except OSError as error:
        where, why = error.filename or home, error.strerror or str(error)
        match error.errno:
            case errno.ENOSPC | errno.EDQUOT:
                raise full(home, f"{where}: {why}") from error
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
