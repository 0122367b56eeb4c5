"""The worker's side of a loop on Spark: the collection as files that tasks read, shards of it, and what becomes of them."""

import asyncio
import base64
import json
import os
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from noetl.model.events import Items
from noetl.results.rowsets import Reader
from noetl.tools.port import Call, ItemBatches, Told

SHARDS = 16  # at least so many, where there are as many items: nobody knows how long one takes
MOST_SHARDS = 1_000
CHEAP, DEAR = (
    20_000,
    500,
)  # items of a shard at most: what takes its time, and what waits for others
BATCH = 250  # items of a cheap body that are called together
WINDOW = 100  # items that wait for answers at once, where the loop does not say
LOOK_EVERY = 1.0  # seconds
_INDEXED = pa.schema([("index", pa.int64()), ("item", pa.json_())])


@dataclass(frozen=True, slots=True)
class LoopDivision:
    """How a loop is divided: items of a shard, how many shards, and how many items of one may run at once."""

    chunk: int
    shards: int
    together: int


def cut(
    size: int, chunk: int | None, window: int | None, *, cheap: bool, cores: int, here: bool = True
) -> LoopDivision:
    """`window` is how many items may run at once over the whole loop. Tasks run on the cores of this machine, or elsewhere:
    then nobody knows how many run at once, and the window holds even if all do."""
    tasks = cores if here or window is None else MOST_SHARDS
    most = window if window is not None and window < tasks else MOST_SHARDS
    chunk = max(1, chunk or min(CHEAP if cheap else DEAR, -(-size // SHARDS)), -(-size // most))
    shards = -(-size // chunk)
    return LoopDivision(
        chunk, shards, BATCH if cheap else max(1, (window or WINDOW) // min(shards, tasks))
    )


@asynccontextmanager
async def work(
    call: Call, items: Reader | ItemBatches, folder: Path, *, here: bool
) -> AsyncIterator[dict[str, Any]]:
    """What the tasks are told; `folder` is for files made for this call. `here`: they run on this machine."""
    config = call.config
    told = folder / "told"
    told.mkdir()
    with ExitStack() as stack:
        paths: list[Path] = []
        if isinstance(items, Reader):
            stack.callback(items.close)
            paths = await asyncio.to_thread(
                lambda: stack.enter_context(items.local(call.tables.staging))
            )
        given = [str(path) for path in paths] or [
            str(await _written(items, folder / "items.parquet"))
        ]
        texts = {
            name: base64.b64encode(config[name]).decode() for name in ("plan", "command", "known")
        }
        parts = cut(
            config["size"],
            config["chunk"],
            config["window"],
            cheap=config["cheap"],
            cores=os.cpu_count() or 1,
            here=here,
        )
        source = {"paths": given, "indexed": not paths}
        shape = {"size": config["size"], "provenance": config["provenance"]}
        yield {**texts, **asdict(parts), **shape, "source": source, "told": str(told)}


async def _written(items: Reader | ItemBatches, path: Path) -> Path:
    """Each with its index: items of a retried loop are not those that follow each other."""
    with pq.ParquetWriter(path, _INDEXED, compression="zstd") as file:
        if isinstance(items, Reader):
            await asyncio.to_thread(_write, file, list(enumerate(items.rows(0, items.count))))
        else:
            async for batch in items:
                await asyncio.to_thread(_write, file, batch)
    return path


def _write(file: Any, batch: list[tuple[int, Any]]) -> None:
    texts = pa.array([msgspec.json.encode(item).decode() for _, item in batch], pa.string())
    columns = [
        pa.array([index for index, _ in batch], pa.int64()),
        pa.ExtensionArray.from_storage(pa.json_(), texts),
    ]
    file.write_batch(pa.RecordBatch.from_arrays(columns, schema=_INDEXED))


async def watch(folder: Path, told: Told) -> None:
    """Until it is cancelled."""
    seen: set[str] = set()
    while True:
        await asyncio.sleep(LOOK_EVERY)
        for name, text in await asyncio.to_thread(_new, folder, seen):
            seen.add(name)
            await told(int(name), items_of(json.loads(text)))


def _new(folder: Path, seen: set[str]) -> list[tuple[str, str]]:
    return [
        (path.name, path.read_text())
        for path in folder.iterdir()
        if path.name.isdigit() and path.name not in seen
    ]


def items_of(told: dict[str, Any]) -> Items:
    return msgspec.convert(told, Items)
