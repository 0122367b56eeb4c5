"""A disk of a few megabytes, in memory: full when it is full."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(place: Path, megabytes: int) -> Iterator[Path]:
    """Mounted there by root; by anyone else in a name space of its own, which is reached through a process that lives in it."""
    place.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(place)]
    if os.geteuid() == 0 and subprocess.run(mount, capture_output=True).returncode == 0:
        try:
            yield place
        finally:
            subprocess.run(["umount", str(place)], check=True)
        return
    stays = ["sh", "-c", '"$@" && echo mounted && exec sleep infinity', "sh", *mount]
    with subprocess.Popen(["unshare", "-rm", *stays], stdout=subprocess.PIPE, text=True) as inside:
        try:
            assert inside.stdout is not None
            if inside.stdout.readline() != "mounted\n":
                pytest.skip("cannot mount a small disk here")
            yield Path(f"/proc/{inside.pid}/root{place}")
        finally:
            inside.kill()


def fill(file: Path) -> None:
    with contextlib.suppress(OSError), file.open("wb", buffering=0) as opened:
        while True:
            opened.write(bytes(4096))
