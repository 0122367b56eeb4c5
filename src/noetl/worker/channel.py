"""The way to the servers: over HTTP, or straight to one in the same process."""

from typing import Protocol

from noetl.model.decisions import AddPart
from noetl.model.exchange import ExchangeReply, ExchangeRequest


class Channel(Protocol):
    """Raises `Unavailable` when no server answers; a call that was cut off may have had its effect."""

    async def exchange(self, request: ExchangeRequest) -> ExchangeReply: ...

    async def playbook(self, content: str) -> str:
        """The text that has this content hash. NotFound when there is none."""
        ...

    async def manifest(self, manifest: str) -> list[AddPart]:
        """Parts of a loop's result or of a call's pages, in order of `first`."""
        ...
