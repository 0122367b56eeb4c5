"""The way to the servers: over HTTP, or directly to a server in the same process."""

from typing import Any, Protocol

from noetl.model.decisions import AddPart
from noetl.model.exchange import ExchangeReply, ExchangeRequest
from noetl.model.ids import ExecutionId, RefId
from noetl.model.messages import StoredRef
from noetl.model.reference import Reference


class Channel(Protocol):
    """Raises `Unavailable` if no server answers, and `Unreached` if none can be connected to.

    A call that was cut off may have taken effect.
    """

    async def exchange(self, request: ExchangeRequest) -> ExchangeReply: ...

    async def fetch_playbook(self, content: str) -> str:
        """The text with this content hash. Raises NotFound if there is none."""
        ...

    async def list_manifest_parts(self, manifest: str) -> list[AddPart]:
        """The parts of a loop's result or of a call's pages, in order of `first`."""
        ...

    async def payload(self, ref_id: RefId, uri: str) -> bytes | None:
        """A payload that the servers keep, from a recorded report or a put.

        None if there is none. Raises Expired if there was one, here or in the store of large
        results.
        """
        ...

    async def put_payload(self, reference: Reference, payload: bytes) -> None:
        """Store a payload of at most 1 MB.

        It is durable when this returns. Raises Conflict if another payload has this address.
        """
        ...

    async def find_orphans(self, execution_id: ExecutionId, uris: list[str]) -> list[str]:
        """Those of these addresses of an execution that no reference names now or later."""
        ...

    async def read_credential(self, name: str) -> dict[str, Any]:
        """The fields of a stored credential. Raises NotFound if there is none with this name."""
        ...

    async def put_logs(self, parts: tuple[StoredRef, ...]) -> None:
        """Store parts of step logs.

        They are durable when this returns. Storing them again changes nothing.
        """
        ...
