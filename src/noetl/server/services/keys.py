"""The key file: one key per line in base64, newest first. The first key seals, every key opens.

The file is made when the first credential is stored. It appears atomically, so if several processes
make it at once, all use the same one. A file that other users can read is refused: they may know
the keys already.
"""

import base64
import binascii
import os
import stat
from contextlib import suppress
from pathlib import Path
from tempfile import mkstemp

from noetl.model.errors import InvalidInput
from noetl.server.services.sealing import KEY, Key, new_key

NAME = "credentials.key"
LARGEST = 64 * 1024  # bytes


class KeyUnusable(InvalidInput):
    """The key file cannot be used as it is; a person has to mend it."""

    code = "KEY_UNUSABLE"


class KeyFile:
    """The key file of a NOETL_HOME."""

    def __init__(self, home: Path) -> None:
        self.path = home / NAME

    def keys(self) -> dict[str, Key]:
        """The keys by id, newest first; empty if there is no file.

        Raises `KeyUnusable` if the file cannot be read or other users may read it.
        """
        try:
            with self.path.open("rb") as file:
                self._check(os.fstat(file.fileno()))
                text = file.read(LARGEST)
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise KeyUnusable(
                f"{self.path}: {error.strerror}", hint="the server's user must be able to read it"
            ) from error
        keys: list[Key] = []
        for number, line in enumerate(text.splitlines(), 1):
            if line.strip():
                keys.append(self._key(number, line))
        if not keys:
            raise self._broken("it is empty")
        return {key.id: key for key in keys}

    def newest(self) -> Key:
        """The key that seals. Makes the file if there is none."""
        keys = self.keys()
        if not keys:
            self._make()
            keys = self.keys()
        return next(iter(keys.values()))

    def _check(self, status: os.stat_result) -> None:
        """Refuse anything but a regular file that only its owner can read."""
        if not stat.S_ISREG(status.st_mode):
            raise self._broken("it is not a file")
        if status.st_mode & 0o077:
            raise KeyUnusable(
                f"{self.path} is open to other users (mode {stat.S_IMODE(status.st_mode):04o})",
                hint=f"chmod 600 {self.path}; if others may have read it, change what the stored credentials give access to",
            )

    def _key(self, number: int, line: bytes) -> Key:
        try:
            secret = base64.b64decode(line.strip(), validate=True)
        except binascii.Error:
            raise self._broken(f"line {number} is not base64") from None
        if len(secret) != KEY:
            raise self._broken(f"line {number} is not a key of {KEY} bytes")
        return Key(secret)

    def _broken(self, why: str) -> KeyUnusable:
        return KeyUnusable(
            f"{self.path} is not a key file: {why}", hint="put it back from where it was kept"
        )

    def _make(self) -> None:
        """Write a temporary file and link it, so that only the first of several processes succeeds;
        the others then use its file."""
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            # mkstemp creates the file with mode 0600
            descriptor, temporary = mkstemp(dir=self.path.parent, prefix=f".{NAME}.")
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(base64.b64encode(new_key().secret) + b"\n")
                    file.flush()
                    os.fsync(file.fileno())
                with suppress(FileExistsError):
                    os.link(temporary, self.path)
            finally:
                os.unlink(temporary)
            _sync(self.path.parent)
        except OSError as error:
            raise KeyUnusable(
                f"cannot make {self.path}: {error.strerror}", hint="is NOETL_HOME writable?"
            ) from error


def _sync(folder: Path) -> None:
    """Make the new file durable before the first row is sealed with its key."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
