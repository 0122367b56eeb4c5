"""The contract of hints: a hint is a subject without content."""

from collections.abc import AsyncIterator
from typing import Protocol

from noetl.model.ids import DEFAULT_TENANT, Tenant


class Bus(Protocol):
    async def publish(self, subject: str) -> None:
        """Send a hint. Never raises, also if the hint is lost."""
        ...

    def subscribe(self, *subjects: str) -> AsyncIterator[str]:
        """Yield published subjects; several hints of one subject may become one."""
        ...


def make_inbox_subject(shard: int) -> str:
    """The subject for new messages in the inbox of a shard."""
    return f"noetl.inbox.{shard}"


def make_commands_subject(tenant: Tenant, pool: str) -> str:
    """The subject for new commands in a pool of a tenant."""
    if tenant == DEFAULT_TENANT:
        return f"noetl.commands.{pool}"
    return f"noetl.tenants.{tenant}.commands.{pool}"
