"""What a loop runs over: from the value of `in` to a collection, and from a collection to the items of one command."""

from typing import Any

from noetl.model.errors import Failure
from noetl.model.events import Collection
from noetl.model.reference import Reference
from noetl.pipeline.context import Context
from noetl.pipeline.data import LazyResult, ResultReader, is_manifest
from noetl.pipeline.failures import Failing
from noetl.pipeline.rendering import TaskRendering
from noetl.playbook.expressions import kind_of

AT_ONCE = 50_000  # rows of a loop before it that are looked at together
Indexed = tuple[int, Any]  # an item's index in its collection, and the item


def as_items(value: Any) -> list[Any]:
    """A list is its items; a map or a text is one item; null is none."""
    if value is None:
        return []
    if isinstance(value, list):
        return value
    if isinstance(value, dict | str):
        return [value]
    message = f"loop.in is {kind_of(value)}; a loop runs over a list, a map or text (one item), or null (none)"
    raise Failing(Failure(code="BAD_COLLECTION", kind="template", message=message))


async def planned(context: Context, rendering: TaskRendering, template: Any) -> Collection:
    """Render `in` and write the collection once. A stored row set is used as it is."""
    value = (
        await rendering.lazy(template)
        if isinstance(template, str)
        else await rendering.value(template)
    )
    reference = value.envelope.reference if isinstance(value, LazyResult) else None
    if isinstance(value, LazyResult) and reference is not None:
        if value.rows_known is not None or is_manifest(reference):
            size = (
                value.rows_known
                if value.rows_known is not None
                else await context.payloads.size(reference)
            )
            return Collection(kind="reference", size=size, reference=reference)
        whole = await context.payloads.resolve(reference)
        if isinstance(whole, list):
            return Collection(kind="reference", size=len(whole), reference=reference)
        value = whole
    elif not isinstance(value, dict | list | str | int | float | bool | None):
        value = await rendering.value(template)
    items = as_items(value)
    if not items:
        return Collection(kind="inline")
    if (known := context.payloads.reference_of(value)) is not None and isinstance(value, list):
        return Collection(kind="reference", size=len(items), reference=known)
    stored = await context.persist.put("plan", items, kind="collection")
    return Collection(kind="reference", size=len(items), reference=stored)


async def items_of(
    context: Context, rendering: TaskRendering, start: int, stop: int
) -> list[Indexed]:
    """Items at positions [start, stop) of the command's collection."""
    command = context.command
    if len(command.items) == command.count and command.count:
        return [
            (position, command.items[position - command.first]) for position in range(start, stop)
        ]
    collection = command.collection
    if collection is None:
        raise _lost(command.step, "the command names none")
    if collection.kind == "failed":
        return await _failed(context, collection, rendering, start, stop)
    found = await _slice(context, collection, rendering, start, stop)
    return list(zip(range(start, stop), found, strict=True))


async def _slice(
    context: Context, collection: Collection, rendering: TaskRendering, start: int, stop: int
) -> list[Any]:
    step = context.step
    if collection.reference is not None:
        found = await _range(context.payloads, collection.reference, start, stop)
    elif collection.items:
        found = list(collection.items[start:stop])
    else:
        found = as_items(await rendering.value(step.loop.in_ if step.loop is not None else None))[
            start:stop
        ]
    if len(found) != stop - start:
        raise _lost(step.step, f"items {start} to {stop} were asked for, {len(found)} are there")
    return found


async def _range(payloads: ResultReader, reference: Reference, start: int, stop: int) -> list[Any]:
    try:
        return await payloads.range(reference, start, stop)
    except Failing as failing:
        if failing.failure.retryable:
            raise
        raise _lost("", failing.failure.message) from failing


async def _failed(
    context: Context, collection: Collection, rendering: TaskRendering, start: int, stop: int
) -> list[Indexed]:
    """Positions count the items that an earlier execution did not finish; their indexes are those of the whole collection."""
    if collection.reference is not None:
        total = await context.payloads.size(collection.reference)
    elif collection.items:
        total = len(collection.items)
    else:
        total = len(
            as_items(
                await rendering.value(
                    context.step.loop.in_ if context.step.loop is not None else None
                )
            )
        )
    finished: set[int] = set()
    if collection.manifest is not None:
        for low in range(0, total, AT_ONCE):
            rows = await context.payloads.item_rows(
                collection.manifest, low, min(low + AT_ONCE, total)
            )
            finished |= {index for index, row in rows.items() if row["status"] != "error"}
    wanted = [index for index in range(total) if index not in finished][start:stop]
    if len(wanted) != stop - start:
        raise _lost(
            context.command.step,
            f"failed items {start} to {stop} were asked for, {len(wanted)} are there",
        )
    return [
        (index, (await _slice(context, collection, rendering, index, index + 1))[0])
        for index in wanted
    ]


def _lost(step: str, why: str) -> Failing:
    message = f"the loop's collection cannot be read{f' (step {step})' if step else ''}: {why}"
    return Failing(Failure(code="COLLECTION_LOST", kind="store", message=message))
