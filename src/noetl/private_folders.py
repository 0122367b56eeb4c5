"""Makes folders that only this user can enter."""

import os
from contextlib import suppress
from pathlib import Path

PRIVATE_FOLDER_MODE = 0o700


def make_private_folder(folder: Path) -> None:
    """Make a folder, and the folders above it that are missing, all of them private.

    `Path.mkdir` gives the folders above the mode of the umask. A folder that is there keeps its mode,
    which may be a choice of its owner.
    """
    if folder.is_dir():
        return
    if folder.parent != folder:
        make_private_folder(folder.parent)
    with suppress(FileExistsError):
        os.mkdir(folder, PRIVATE_FOLDER_MODE)
        os.chmod(folder, PRIVATE_FOLDER_MODE)  # a umask may have taken bits that the owner needs
