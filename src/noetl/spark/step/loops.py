"""The worker's side of a loop on Spark: writes the collection to files, divides it into shards, and
follows their progress."""

import asyncio
import base64
import os
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from noetl.model.events import Items
from noetl.results.formats.rowsets import RowSetReader
from noetl.spark.messages import LoopSource, LoopWork, decode_message
from noetl.tools.port import Call, ItemBatches, PartListener

MIN_SHARDS = 16  # the least number of shards, if there are as many items: their duration is unknown
MAX_SHARDS = 1_000
MAX_CHEAP_ITEMS, MAX_WAITING_ITEMS = (
    20_000,
    500,
)  # the most items of a shard: of a cheap body, and of one that waits
CHEAP_BATCH_ITEMS = 250  # items of a cheap body that are called together
DEFAULT_WINDOW = 100  # items that run at once if the loop does not say
REPORT_INTERVAL_S = 1.0  # seconds between two looks at the progress
_INDEXED_ITEMS = pa.schema([("index", pa.int64()), ("item", pa.json_())])


@dataclass(frozen=True, slots=True)
class LoopDivision:
    """How a loop is divided: items per shard, number of shards, and items of a shard that run at once."""

    chunk: int
    shards: int
    together: int


def divide_loop(
    size: int,
    chunk: int | None,
    window: int | None,
    *,
    cheap: bool,
    cores: int,
    here: bool = True,
) -> LoopDivision:
    """Divide a loop into shards. `window` bounds the items that run at once over the whole loop.

    Tasks run on the cores of this machine (`here`) or elsewhere. Elsewhere the number of tasks that
    run at once is unknown, so the window must hold even if all run.
    """
    tasks = cores if here or window is None else MAX_SHARDS
    max_shards = MAX_SHARDS
    if window is not None and window < tasks:
        max_shards = window
    if not chunk:
        max_items = MAX_CHEAP_ITEMS if cheap else MAX_WAITING_ITEMS
        chunk = min(max_items, _divide_up(size, MIN_SHARDS))
    chunk = max(1, chunk, _divide_up(size, max_shards))
    shards = _divide_up(size, chunk)
    if cheap:
        return LoopDivision(chunk, shards, CHEAP_BATCH_ITEMS)
    together = (window or DEFAULT_WINDOW) // min(shards, tasks)
    return LoopDivision(chunk, shards, max(1, together))


def _divide_up(count: int, divisor: int) -> int:
    return -(-count // divisor)


@asynccontextmanager
async def describe_loop(
    call: Call,
    items: RowSetReader | ItemBatches,
    folder: Path,
    *,
    here: bool,
) -> AsyncIterator[LoopWork]:
    """The description of a loop that its tasks get. The collection is open until the block ends.

    `folder` is for files made for this call. `here`: the tasks run on this machine.
    """
    config = call.config
    reports = folder / "reports"
    reports.mkdir()
    with ExitStack() as stack:
        paths: list[Path] = []
        if isinstance(items, RowSetReader):
            stack.callback(items.close)
            paths = await asyncio.to_thread(
                lambda: stack.enter_context(items.open_local_files(call.tables.staging))
            )
        if paths:
            source = LoopSource([str(path) for path in paths], indexed=False)
        else:
            written = await _write_item_file(items, folder / "items.parquet")
            source = LoopSource([str(written)], indexed=True)
        division = divide_loop(
            config["size"],
            config["chunk"],
            config["window"],
            cheap=config["cheap"],
            cores=os.cpu_count() or 1,
            here=here,
        )
        yield LoopWork(
            plan=base64.b64encode(config["plan"]).decode(),
            command=base64.b64encode(config["command"]).decode(),
            known=base64.b64encode(config["known"]).decode(),
            chunk=division.chunk,
            shards=division.shards,
            together=division.together,
            size=config["size"],
            provenance=config["provenance"],
            source=source,
            reports=str(reports),
            egress=config["egress"],
        )


async def _write_item_file(items: RowSetReader | ItemBatches, path: Path) -> Path:
    """Write the items with their indexes, which have gaps in a retried loop."""
    with pq.ParquetWriter(path, _INDEXED_ITEMS, compression="zstd") as file:
        if isinstance(items, RowSetReader):
            rows = items.read_rows(0, items.count)
            await asyncio.to_thread(_write_item_batch, file, list(enumerate(rows)))
        else:
            async for batch in items:
                await asyncio.to_thread(_write_item_batch, file, batch)
    return path


def _write_item_batch(file: Any, batch: list[tuple[int, Any]]) -> None:
    indexes = [index for index, _ in batch]
    texts = [msgspec.json.encode(item).decode() for _, item in batch]
    columns = [
        pa.array(indexes, pa.int64()),
        pa.ExtensionArray.from_storage(pa.json_(), pa.array(texts, pa.string())),
    ]
    file.write_batch(pa.RecordBatch.from_arrays(columns, schema=_INDEXED_ITEMS))


async def watch_reports(folder: Path, listener: PartListener) -> None:
    """Tell the listener of every shard that ends, until this is cancelled."""
    seen: set[str] = set()
    while True:
        await asyncio.sleep(REPORT_INTERVAL_S)
        for name, text in await asyncio.to_thread(_list_new_reports, folder, seen):
            seen.add(name)
            await listener(int(name), decode_message(text, Items))


def _list_new_reports(folder: Path, seen: set[str]) -> list[tuple[str, str]]:
    """Names and texts of the reports that have not been seen."""
    found = []
    for path in folder.iterdir():
        if path.name.isdigit() and path.name not in seen:
            found.append((path.name, path.read_text()))
    return found
