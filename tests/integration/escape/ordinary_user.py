"""Runs programs as an ordinary user, also where tests run as root."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NOBODY = 65534


def as_ordinary_user(*command: str) -> list[str]:
    """The command, run by an ordinary user.

    It may read files that only root can read, because root's Python may be one of them. It has no
    other privilege; above all it cannot inspect processes.
    """
    if os.getuid() != 0:
        return list(command)
    reading = "-all,+dac_read_search"
    user = [f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    capabilities = [f"--inh-caps={reading}", "--ambient-caps=+dac_read_search"]
    return ["setpriv", *user, *capabilities, f"--bounding-set={reading}", *command]


@contextmanager
def ordinary_folder() -> Iterator[Path]:
    """A folder of the ordinary user."""
    folder = Path(tempfile.mkdtemp(prefix="noetl-test-ordinary-"))
    if os.getuid() == 0:
        os.chown(folder, NOBODY, NOBODY)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
