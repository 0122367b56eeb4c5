"""What no reference names: left by attempts that died between put and report, or whose report was refused.

Only a process that knows the store can list and delete; only the servers know what the log names. So this lists, they judge.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

from noetl.model.ids import ExecutionId
from noetl.results.port import StoredObject, Tier

TOGETHER = 500  # addresses in one question
_HELD = 16  # executions whose addresses are gathered at once

Judge = Callable[[ExecutionId, list[str]], Awaitable[list[str]]]


@dataclass(frozen=True, slots=True)
class Swept:
    looked: int = 0
    deleted: int = 0
    bytes: int = 0


async def sweep(tier: Tier, orphans: Judge, before: float) -> Swept:
    """Deletes the orphans among what was stored before that time (seconds since 1970)."""
    looked = deleted = freed = 0
    async for found in _by_execution(tier):
        looked += len(found)
        old = {str(each.address): each for each in found if each.modified < before}
        for uri in await orphans(found[0].address.execution_id, list(old)) if old else ():
            await tier.delete(old[uri].address)
            deleted += 1
            freed += old[uri].bytes
    return Swept(looked, deleted, freed)


async def _by_execution(tier: Tier) -> AsyncIterator[list[StoredObject]]:
    """So many of one execution at most; those of an execution come together where a tier lists them so."""
    held: dict[ExecutionId, list[StoredObject]] = {}
    async for stored in tier.listed():
        of = held.setdefault(stored.address.execution_id, [])
        of.append(stored)
        if len(of) == TOGETHER or len(held) > _HELD:
            yield held.pop(next(iter(held)) if len(held) > _HELD else stored.address.execution_id)
    for of in held.values():
        yield of
