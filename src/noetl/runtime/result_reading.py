"""Opens the stored results for a server that shows them."""

from pathlib import Path

from noetl import settings
from noetl.pipeline.output.reading import StoredResults
from noetl.runtime.stores import open_store
from noetl.server.node import Server


def open_result_reading(server: Server, home: Path) -> StoredResults:
    """The results that this process may read.

    Callers are interactive, so an unavailable store fails at once instead of being retried.
    """
    storage = settings.read_settings(settings.StorageSettings)
    impatient = storage.replace(storage_patience_sec=0.0)
    return StoredResults(open_store(server, home, impatient), server.list_manifest_parts)
