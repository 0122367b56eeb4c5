"""Deletes payloads that no reference names: an attempt died between put and report, or its report
was refused.

Only a process with access to the store can list and delete; only the servers know which references
the log has. So this lists, and the servers say which ones are orphans.
"""

from collections.abc import AsyncIterator, Awaitable, Callable

from msgspec import Struct

from noetl.model.ids import ExecutionId
from noetl.results.port import StoredObject, Tier

MAX_ASKED_ADDRESSES = 500  # addresses in one question to the servers
_MAX_OPEN_GROUPS = 16  # executions for which addresses are collected at the same time

FindOrphans = Callable[[ExecutionId, list[str]], Awaitable[list[str]]]


class SweepCounts(Struct, frozen=True):
    looked: int = 0
    deleted: int = 0
    bytes: int = 0


async def sweep_orphans(tier: Tier, orphans: FindOrphans, before: float) -> SweepCounts:
    """Delete the orphans that were stored before that time (seconds since 1970)."""
    looked = deleted = freed = 0
    async for stored in _group_by_execution(tier):
        looked += len(stored)
        old = {str(each.address): each for each in stored if each.modified < before}
        if not old:
            continue
        execution_id = stored[0].address.execution_id
        for uri in await orphans(execution_id, list(old)):
            await tier.delete(old[uri].address)
            deleted += 1
            freed += old[uri].bytes
    return SweepCounts(looked, deleted, freed)


async def _group_by_execution(tier: Tier) -> AsyncIterator[list[StoredObject]]:
    """Group the stored objects by execution, at most TOGETHER in one group.

    An execution may come in several groups if the tier does not list its objects together.
    """
    groups: dict[ExecutionId, list[StoredObject]] = {}
    async for stored in tier.list_objects():
        execution_id = stored.address.execution_id
        group = groups.setdefault(execution_id, [])
        group.append(stored)
        if len(groups) > _MAX_OPEN_GROUPS:
            yield groups.pop(next(iter(groups)))
        elif len(group) == MAX_ASKED_ADDRESSES:
            yield groups.pop(execution_id)
    for group in groups.values():
        yield group
