"""Opens a file of a result inside a Spark task: a local file, or an object by its signed URL."""

import os
from pathlib import Path
from typing import Any

from noetl.results.formats.rowsets import ParquetReader
from noetl.results.sources import FileSource


def open_task_file(file: dict[str, Any], name: str) -> ParquetReader:
    """Open the file at `path` or `url`. The caller closes it."""
    path = file.get("path")
    if path is not None:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        return ParquetReader(FileSource(descriptor, Path(path)), name)
    from noetl.results.tiers.objects import (
        SignedObject,  # tasks that read local files do not load it
    )

    return ParquetReader(SignedObject(file["url"], file["size"]), name)
