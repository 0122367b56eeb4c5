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
from noetl.private_folders import make_private_folder
from noetl.server.credentials.sealing import KEY_BYTES, SealingKey, make_sealing_key

KEY_FILE_NAME = "credentials.key"
FORMAT_FILE_NAME = "credentials.versioned"
MAX_KEY_FILE_BYTES = 64 * 1024  # bytes


class KeyUnusable(InvalidInput):
    """The key file cannot be used as it is; a person has to mend it."""

    code = "KEY_UNUSABLE"


class KeyFile:
    """The key file of a NOETL_HOME."""

    def __init__(self, home: Path) -> None:
        self.path = home / KEY_FILE_NAME
        self.format_path = home / FORMAT_FILE_NAME

    def read_keys(self) -> dict[str, SealingKey]:
        """The keys by id, newest first; empty if there is no file.

        Raises `KeyUnusable` if the file cannot be read or other users may read it.
        """
        try:
            with self.path.open("rb") as file:
                self._check_mode(os.fstat(file.fileno()))
                text = file.read(MAX_KEY_FILE_BYTES)
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise KeyUnusable(
                f"{self.path}: {error.strerror}", hint="the server's user must be able to read it"
            ) from error
        keys: list[SealingKey] = []
        for number, line in enumerate(text.splitlines(), 1):
            if line.strip():
                keys.append(self._parse_key_line(number, line))
        if not keys:
            raise self._make_unusable_error("it is empty")
        return {key.id: key for key in keys}

    def get_sealing_key(self) -> SealingKey:
        """The key that seals. Makes the file if there is none."""
        keys = self.read_keys()
        if not keys:
            self._make_file()
            keys = self.read_keys()
        return next(iter(keys.values()))

    def requires_versions(self) -> bool:
        """Whether all credentials have been sealed with a version, so that one without it is refused."""
        return self.format_path.exists()

    def require_versions(self) -> None:
        """From now on refuse credentials that are sealed without a version.

        The mark is beside the key, so that who can change the database only cannot remove it.
        """
        try:
            os.close(os.open(self.format_path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
            _sync_folder(self.path.parent)
        except OSError as error:
            raise KeyUnusable(
                f"cannot make {self.format_path}: {error.strerror}", hint="is NOETL_HOME writable?"
            ) from error

    def _check_mode(self, status: os.stat_result) -> None:
        """Refuse anything but a regular file that only its owner can read."""
        if not stat.S_ISREG(status.st_mode):
            raise self._make_unusable_error("it is not a file")
        if status.st_mode & 0o077:
            raise KeyUnusable(
                f"{self.path} is open to other users (mode {stat.S_IMODE(status.st_mode):04o})",
                hint=f"chmod 600 {self.path}; if others may have read it, change what the stored credentials give access to",
            )

    def _parse_key_line(self, number: int, line: bytes) -> SealingKey:
        try:
            secret = base64.b64decode(line.strip(), validate=True)
        except binascii.Error:
            raise self._make_unusable_error(f"line {number} is not base64") from None
        if len(secret) != KEY_BYTES:
            raise self._make_unusable_error(f"line {number} is not a key of {KEY_BYTES} bytes")
        return SealingKey(secret)

    def _make_unusable_error(self, why: str) -> KeyUnusable:
        return KeyUnusable(
            f"{self.path} is not a key file: {why}", hint="put it back from where it was kept"
        )

    def _make_file(self) -> None:
        """Write a temporary file and link it, so that only the first of several processes succeeds;
        the others then use its file."""
        try:
            make_private_folder(self.path.parent)
            # mkstemp creates the file with mode 0600
            descriptor, temporary = mkstemp(dir=self.path.parent, prefix=f".{KEY_FILE_NAME}.")
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(base64.b64encode(make_sealing_key().secret) + b"\n")
                    file.flush()
                    os.fsync(file.fileno())
                with suppress(FileExistsError):
                    os.link(temporary, self.path)
            finally:
                os.unlink(temporary)
            _sync_folder(self.path.parent)
        except OSError as error:
            raise KeyUnusable(
                f"cannot make {self.path}: {error.strerror}", hint="is NOETL_HOME writable?"
            ) from error


def _sync_folder(folder: Path) -> None:
    """Make the new file durable before the first row is sealed with its key."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
