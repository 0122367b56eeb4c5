"""The collection of a loop: from the value of `in` to a collection, and from it to items."""

from typing import Any

from noetl.model.commands import Command
from noetl.model.errors import Failure
from noetl.model.events import Collection
from noetl.model.reference import Reference
from noetl.pipeline.context import CommandContext
from noetl.pipeline.failures import TaskFailed
from noetl.pipeline.scope.lazy_results import LazyResult
from noetl.pipeline.scope.rendering import TaskRendering
from noetl.pipeline.scope.results import ResultReader, is_manifest
from noetl.playbook.loop_items import list_loop_items

MAX_ROWS_READ_TOGETHER = 50_000  # rows of an earlier loop that are read together
IndexedItem = tuple[int, Any]  # an item's index in its collection, and the item


def _list_items_or_fail(value: Any) -> list[Any]:
    items = list_loop_items(value)
    if isinstance(items, Failure):
        raise TaskFailed(items)
    return items


async def plan_collection(
    context: CommandContext,
    rendering: TaskRendering,
    template: Any,
) -> Collection:
    """Render `in` and write the collection once. A stored row set is used as it is."""
    if isinstance(template, str):
        value = await rendering.render_lazily(template)
    else:
        value = await rendering.value(template)
    if isinstance(value, LazyResult) and value.envelope.reference is not None:
        reference = value.envelope.reference
        size = value.known_row_count
        if size is None and is_manifest(reference):
            size = await context.payloads.count_stored_items(reference)
        if size is not None:
            return Collection(
                kind="reference",
                size=size,
                reference=reference,
            )
        value = await context.payloads.resolve(reference)
        if isinstance(value, list):
            return Collection(
                kind="reference",
                size=len(value),
                reference=reference,
            )
    elif not isinstance(value, dict | list | str | int | float | bool | None):
        value = await rendering.value(template)
    items = _list_items_or_fail(value)
    if not items:
        return Collection(kind="inline")
    stored = context.payloads.find_payload(value)
    if stored is None or not isinstance(value, list):
        stored = await context.persist.put_value("plan", items, kind="collection")
    return Collection(
        kind="reference",
        size=len(items),
        reference=stored,
    )


def list_issued_items(command: Command, start: int, stop: int) -> list[IndexedItem] | None:
    """Items at positions [start, stop) with their indexes, if the command brings its items."""
    if not command.count or len(command.items) != command.count:
        return None
    listed = command.items[start - command.first : stop - command.first]
    return list(zip(range(start, stop), listed, strict=True))


async def read_items(
    context: CommandContext,
    rendering: TaskRendering,
    start: int,
    stop: int,
) -> list[IndexedItem]:
    """Items at positions [start, stop) of the command's collection, with their indexes."""
    command = context.command
    issued = list_issued_items(command, start, stop)
    if issued is not None:
        return issued
    collection = command.collection
    if collection is None:
        raise _collection_lost(command.step, "the command names none")
    if collection.kind == "failed":
        return await _read_unfinished_items(context, collection, rendering, start, stop)
    items = await _read_slice(context, collection, rendering, start, stop)
    return list(zip(range(start, stop), items, strict=True))


async def _read_slice(
    context: CommandContext,
    collection: Collection,
    rendering: TaskRendering,
    start: int,
    stop: int,
) -> list[Any]:
    """Items [start, stop) of a collection. Fails if some are not there any more."""
    if collection.reference is not None:
        items = await _read_stored_range(context.payloads, collection.reference, start, stop)
    elif collection.items:
        items = list(collection.items[start:stop])
    else:
        items = (await _render_items(context, rendering))[start:stop]
    if len(items) != stop - start:
        why = f"items {start} to {stop} were asked for, {len(items)} are there"
        raise _collection_lost(context.step.step, why)
    return items


async def _render_items(context: CommandContext, rendering: TaskRendering) -> list[Any]:
    loop = context.step.loop
    template = None
    if loop is not None:
        template = loop.in_
    return _list_items_or_fail(await rendering.value(template))


async def _read_stored_range(
    payloads: ResultReader,
    reference: Reference,
    start: int,
    stop: int,
) -> list[Any]:
    try:
        return await payloads.read_item_range(reference, start, stop)
    except TaskFailed as failing:
        if failing.failure.retryable:
            raise
        raise _collection_lost("", failing.failure.message) from failing


async def _read_unfinished_items(
    context: CommandContext,
    collection: Collection,
    rendering: TaskRendering,
    start: int,
    stop: int,
) -> list[IndexedItem]:
    """Items that an earlier execution did not finish.

    Positions [start, stop) count these items only. The indexes are those of the whole collection.
    """
    unfinished = collection.only or await _list_unfinished_indexes(context, collection, rendering)
    indexes = unfinished[start:stop]
    if len(indexes) != stop - start:
        why = f"failed items {start} to {stop} were asked for, {len(indexes)} are there"
        raise _collection_lost(context.command.step, why)
    items: list[IndexedItem] = []
    for index in indexes:
        (item,) = await _read_slice(context, collection, rendering, index, index + 1)
        items.append((index, item))
    return items


async def _list_unfinished_indexes(
    context: CommandContext, collection: Collection, rendering: TaskRendering
) -> tuple[int, ...]:
    if collection.reference is not None:
        total = await context.payloads.count_stored_items(collection.reference)
    elif collection.items:
        total = len(collection.items)
    else:
        total = len(await _render_items(context, rendering))
    finished = await _find_finished_indexes(context.payloads, collection.manifest, total)
    return tuple(index for index in range(total) if index not in finished)


async def _find_finished_indexes(
    payloads: ResultReader, manifest: Reference | None, total: int
) -> set[int]:
    """The indexes of the items that the loop with this manifest finished."""
    finished: set[int] = set()
    if manifest is None:
        return finished
    for low in range(0, total, MAX_ROWS_READ_TOGETHER):
        rows = await payloads.read_item_rows(
            manifest, low, min(low + MAX_ROWS_READ_TOGETHER, total)
        )
        finished |= {index for index, row in rows.items() if row["status"] != "error"}
    return finished


def _collection_lost(step: str, why: str) -> TaskFailed:
    where = f" (step {step})" if step else ""
    message = f"the loop's collection cannot be read{where}: {why}"
    return TaskFailed(Failure(code="COLLECTION_LOST", kind="store", message=message))
