"""Opens a file of a result inside a Spark task: a local file, or an object by its signed URL."""

import os
from pathlib import Path
from typing import Any

from noetl.results.rowsets import InFile
from noetl.results.sources import Opened


def opened(file: dict[str, Any], name: str) -> InFile:
    """Open the file at `path` or `url`. The caller closes it."""
    path = file.get("path")
    if path is not None:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        return InFile(Opened(descriptor, Path(path)), name)
    from noetl.results.objects import Signed  # tasks that read local files do not load it

    return InFile(Signed(file["url"], file["size"]), name)
