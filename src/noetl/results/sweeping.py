"""Deletes payloads that no reference names: an attempt died between put and report, or its report
was refused.

Only a process with access to the store can list and delete; only the servers know which references
the log has. So this lists, and the servers say which ones are orphans.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

from noetl.model.ids import ExecutionId
from noetl.results.port import StoredObject, Tier

TOGETHER = 500  # addresses in one question to the servers
_HELD = 16  # executions for which addresses are collected at the same time

Judge = Callable[[ExecutionId, list[str]], Awaitable[list[str]]]


@dataclass(frozen=True, slots=True)
class Swept:
    looked: int = 0
    deleted: int = 0
    bytes: int = 0


async def sweep(tier: Tier, orphans: Judge, before: float) -> Swept:
    """Delete the orphans that were stored before that time (seconds since 1970)."""
    looked = deleted = freed = 0
    async for stored in _by_execution(tier):
        looked += len(stored)
        old = {str(each.address): each for each in stored if each.modified < before}
        if not old:
            continue
        execution_id = stored[0].address.execution_id
        for uri in await orphans(execution_id, list(old)):
            await tier.delete(old[uri].address)
            deleted += 1
            freed += old[uri].bytes
    return Swept(looked, deleted, freed)


async def _by_execution(tier: Tier) -> AsyncIterator[list[StoredObject]]:
    """Group the stored objects by execution, at most TOGETHER in one group.

    An execution may come in several groups if the tier does not list its objects together.
    """
    groups: dict[ExecutionId, list[StoredObject]] = {}
    async for stored in tier.listed():
        execution_id = stored.address.execution_id
        group = groups.setdefault(execution_id, [])
        group.append(stored)
        if len(groups) > _HELD:
            yield groups.pop(next(iter(groups)))
        elif len(group) == TOGETHER:
            yield groups.pop(execution_id)
    for group in groups.values():
        yield group
