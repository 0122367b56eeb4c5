"""A file of a result as Spark's tasks open it: here, or afar by an address that their worker gave them."""

import os
from pathlib import Path
from typing import Any

from noetl.results.rowsets import InFile
from noetl.results.sources import Opened


def opened(file: dict[str, Any], name: str) -> InFile:
    """Whoever asks closes it."""
    if (path := file.get("path")) is not None:
        return InFile(Opened(os.open(path, os.O_RDONLY | os.O_CLOEXEC), Path(path)), name)
    from noetl.results.objects import (
        Signed,  # a task that reads files of its machine does not load it
    )

    return InFile(Signed(file["url"], file["size"]), name)
