"""The port through which a server reads stored results, if it is given one at its start.

The server itself opens no data.
"""

from collections.abc import Callable
from typing import Any, Protocol

from noetl.model.ids import Tenant
from noetl.model.previews import Download, Preview
from noetl.model.reference import Reference


class Results(Protocol):
    """Methods raise `NotFound` or `Unavailable` if a payload cannot be read."""

    async def preview(
        self, reference: Reference, rows: int, start: int = 0, sort: str | None = None
    ) -> Preview:
        """Rows from `start` on, or the value if it has no rows.

        `sort` is a column; with a minus before it, the largest value comes first. Raises
        `InvalidInput` if there are too many rows to sort.
        """
        ...

    async def read_rows(self, reference: Reference, start: int, stop: int) -> list[Any]:
        """Rows [start, stop) as JSON values, without keys that name secrets."""
        ...

    async def download(
        self,
        reference: Reference | None,
        format: str | None,
        start: int = 0,
        stop: int | None = None,
    ) -> Download:
        """Rows [start, stop) of the result; as it is stored if `format` is None."""
        ...


OpenResults = Callable[[Tenant], Results]  # the stored results of a tenant
