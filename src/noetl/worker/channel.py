"""The way to the servers: over HTTP, or straight to one in the same process."""

from typing import Any, Protocol

from noetl.model.decisions import AddPart
from noetl.model.exchange import ExchangeReply, ExchangeRequest
from noetl.model.ids import ExecutionId, RefId
from noetl.model.messages import StoredRef
from noetl.model.reference import Reference


class Channel(Protocol):
    """Raises `Unavailable` when no server answers, `Unreached` when there is none to ask; a call that was cut off may have had
    its effect."""

    async def exchange(self, request: ExchangeRequest) -> ExchangeReply: ...

    async def playbook(self, content: str) -> str:
        """The text that has this content hash. NotFound when there is none."""
        ...

    async def manifest(self, manifest: str) -> list[AddPart]:
        """Parts of a loop's result or of a call's pages, in order of `first`."""
        ...

    async def payload(self, ref_id: RefId, uri: str) -> bytes | None:
        """A payload that servers keep: brought by a recorded report, or put. None when there is none; Expired when
        there was one, here or in the store of large results."""
        ...

    async def put_payload(self, reference: Reference, payload: bytes) -> None:
        """Durable when it returns. Conflict when another payload stands there; at most 1 MB."""
        ...

    async def orphans(self, execution_id: ExecutionId, uris: list[str]) -> list[str]:
        """Of these addresses of an execution, those that no reference names and none ever will."""
        ...

    async def credential(self, name: str) -> dict[str, Any]:
        """The fields of a stored credential. NotFound when there is none of this name."""
        ...

    async def put_logs(self, parts: tuple[StoredRef, ...]) -> None:
        """Parts of step logs; durable when it returns. The same again changes nothing."""
        ...
