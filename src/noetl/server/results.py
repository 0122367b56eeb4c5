"""The way to stored results, for servers that are given one: a server opens no data by itself."""

from typing import Protocol

from noetl.model.reference import Reference
from noetl.model.shown import Download, Preview


class Results(Protocol):
    """NotFound, or Unavailable, when a payload cannot be had."""

    async def preview(self, reference: Reference, rows: int) -> Preview: ...

    async def download(
        self,
        reference: Reference | None,
        format: str | None,
        start: int = 0,
        stop: int | None = None,
    ) -> Download:
        """Without a format: as it is stored. Rows [start, stop) of it."""
        ...
