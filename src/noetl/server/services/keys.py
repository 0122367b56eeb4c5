"""The key file: one key a line in base64, newest first. The first one seals, every one opens.

It is made when the first credential is stored, whole or not at all, so that of several processes one makes it and the others use
it. One that others can read is refused: what it protects may be known already.
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
    """The key file cannot be used as it is; somebody has to look at it."""

    code = "KEY_UNUSABLE"


class KeyFile:
    def __init__(self, home: Path) -> None:
        self.path = home / NAME

    def keys(self) -> dict[str, Key]:
        """By id, newest first; none when there is no file. KeyUnusable when it cannot be trusted or read."""
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
        found = [
            self._key(number, line)
            for number, line in enumerate(text.splitlines(), 1)
            if line.strip()
        ]
        if not found:
            raise self._broken("it is empty")
        return {key.id: key for key in found}

    def newest(self) -> Key:
        """The one that seals. Made now when there is none."""
        found = self.keys()
        if not found:
            self._make()
            found = self.keys()
        return next(iter(found.values()))

    def _check(self, found: os.stat_result) -> None:
        if not stat.S_ISREG(found.st_mode):
            raise self._broken("it is not a file")
        if found.st_mode & 0o077:
            raise KeyUnusable(
                f"{self.path} is open to other users (mode {stat.S_IMODE(found.st_mode):04o})",
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
        """Written aside and linked: whoever comes second finds the first one's."""
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            opened, aside = mkstemp(
                dir=self.path.parent, prefix=f".{NAME}."
            )  # 0600 from the first moment
            try:
                with os.fdopen(opened, "wb") as file:
                    file.write(base64.b64encode(new_key().secret) + b"\n")
                    file.flush()
                    os.fsync(file.fileno())
                with suppress(FileExistsError):
                    os.link(aside, self.path)
            finally:
                os.unlink(aside)
            _sync(self.path.parent)
        except OSError as error:
            raise KeyUnusable(
                f"cannot make {self.path}: {error.strerror}", hint="is NOETL_HOME writable?"
            ) from error


def _sync(folder: Path) -> None:
    """Sealed rows must not outlive their key."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
