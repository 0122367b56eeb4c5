"""The port through which a server reads stored results, if it is given one at its start.

The server itself opens no data.
"""

from typing import Protocol

from noetl.model.previews import Download, Preview
from noetl.model.reference import Reference


class Results(Protocol):
    """Methods raise `NotFound` or `Unavailable` if a payload cannot be read."""

    async def preview(self, reference: Reference, rows: int) -> Preview: ...

    async def download(
        self,
        reference: Reference | None,
        format: str | None,
        start: int = 0,
        stop: int | None = None,
    ) -> Download:
        """Rows [start, stop) of the result; as it is stored if `format` is None."""
        ...
