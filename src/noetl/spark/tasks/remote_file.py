"""Opens a file of a result inside a Spark task: a local file, or an object by its signed URL."""

import os
from pathlib import Path

from noetl.results.formats.rowsets import ParquetReader
from noetl.results.sources import FileSource
from noetl.spark.messages import FileLocation


def open_task_file(file: FileLocation, name: str) -> ParquetReader:
    """Open the file at its path or URL. The caller closes it."""
    if file.path is not None:
        descriptor = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
        return ParquetReader(FileSource(descriptor, Path(file.path)), name)
    from noetl.results.tiers.objects import (
        SignedObject,  # tasks that read local files do not load it
    )

    return ParquetReader(SignedObject(file.url, file.size), name)
