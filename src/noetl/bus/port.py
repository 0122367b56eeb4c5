"""The contract of hints: a subject, no content anyone may rely on."""

from collections.abc import AsyncIterator
from typing import Protocol


class Bus(Protocol):
    async def publish(self, subject: str) -> None: ...  # never raises for a lost hint
    def subscribe(
        self, *subjects: str
    ) -> AsyncIterator[str]: ...  # yields subjects that were published, coalesced


def inbox(shard: int) -> str:
    return f"noetl.inbox.{shard}"


def commands(pool: str) -> str:
    return f"noetl.commands.{pool}"
