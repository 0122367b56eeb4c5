"""What a loop on Spark runs inside Spark's tasks: the step's pipeline for every item of a shard, the same code as on a worker.

A shard is a range of the collection. Its task reads the items, runs them, and writes their rows to a file of its own; Spark only
hears which file that is, what is in it, and how the items ended. A task that Spark runs twice writes two files, and one is named.
Python runs in the task's process, inputs and results pass as JSON as they do elsewhere.
"""

import asyncio
import base64
import json
import os
import pickle
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec.structs import replace

from noetl.model import events as e
from noetl.model.clock import iso
from noetl.model.codec import decode_command
from noetl.model.errors import Failure
from noetl.model.ids import Micros
from noetl.model.reference import address
from noetl.pipeline.chunk import ItemBatch, added, counted
from noetl.pipeline.collections import Indexed
from noetl.pipeline.context import Context
from noetl.pipeline.environment import Environment, OutgoingEvent
from noetl.pipeline.names import LoopItem, loop_id
from noetl.pipeline.plain import BatchedItems
from noetl.pipeline.provenance import shared_provenance
from noetl.results.memory import ResultsMemory
from noetl.results.rowsets import Joined, Reader, as_rows, read
from noetl.results.sources import Opened
from noetl.results.tables import Head
from noetl.spark.entry import row_schema
from noetl.spark.inline import InlinePython
from noetl.spark.secrets import AskedKeychain, RedactedStdout
from noetl.tools.registry import Registry, built_in

Columns = dict[str, list[Any] | pa.Array]  # of the rows of items, by name
AT_ONCE = 4_000  # items that run together, if they are small:
MEMORY = 4 << 20  # bytes of items that run together, and of rows that are written together


def shards(work: dict[str, Any], batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Numbers of shards in, what became of them out."""
    for batch in batches:
        for number in batch.column(0).to_pylist():
            told = json.dumps(Shard(work, number).run())
            yield pa.RecordBatch.from_pydict({"shard": [number], "told": [told]})


class Shard:
    def __init__(self, work: dict[str, Any], number: int) -> None:
        self._work = work
        self._number = number
        self._first = number * work["chunk"]
        self._stop = min(self._first + work["chunk"], work["size"])
        self._path = Path(work["folder"], f"part-{number:05}-{uuid4().hex}.parquet")

    def run(self) -> dict[str, Any]:
        with _as_it_was(), asyncio.Runner() as runner:
            ended = runner.run(self._all())
        told = {"file": _file(self._path, self._stop - self._first), **ended}
        _say(Path(self._work["told"], str(self._number)), json.dumps(told["items"]))
        return told

    async def _all(self) -> dict[str, Any]:
        """How the items ended, and the provenance that they share."""
        context = await _context(self._work)
        loop = context.step.loop
        assert loop is not None, "only loops come here"
        reduce = {name: str(reducer) for name, reducer in loop.spec.reduce.items()}
        plain = BatchedItems.of(context.shared, context.writes(), iso(context.env.clock.now()))
        found = e.Items(first=self._first)
        provenance: dict[str, Any] = {}
        schema = row_schema(self._work)
        writing = pq.ParquetWriter(
            self._path, schema, compression="zstd", compression_level=1, write_page_checksum=True
        )
        redactor = context.env.redactor
        out, err = RedactedStdout(sys.stdout, redactor), RedactedStdout(sys.stderr, redactor)
        try:
            with writing as file, redirect_stdout(out), redirect_stderr(err):
                held = RowBuffer(file)
                for items in self._items():
                    if plain is None:
                        columns, done, shared = await _ran(context, items, schema.names)
                        provenance = shared_provenance((provenance, shared))
                    else:
                        columns, done = await _ran_plain(context, plain, items)
                    held.add(redactor.batch(_rows(schema, columns)))
                    found = added(reduce, found, done)
                held.write()
        finally:
            await context.env.registry.close()
        told = {"items": msgspec.to_builtins(found), "provenance": provenance}
        ended: dict[str, Any] = redactor.value(told, payload=True)
        return ended

    def _items(self) -> Iterator[list[Indexed]]:
        """A few at a time, with their indexes."""
        source = self._work["source"]
        reader = Joined(Head(), [_opened(path) for path in source["paths"]])
        try:
            position = self._first
            for batch in reader.batches(self._first, self._stop):
                few = max(1, min(AT_ONCE, MEMORY * batch.num_rows // max(batch.nbytes, 1)))
                for low in range(0, batch.num_rows, few):
                    rows = as_rows(batch.slice(low, few))
                    if source["indexed"]:
                        yield [(row["index"], row["item"]) for row in rows]
                    else:
                        yield list(enumerate(rows, position))
                    position += len(rows)
        finally:
            reader.close()


@contextmanager
def _as_it_was() -> Iterator[None]:
    """The process runs shards of other loops too: they find the environment, the folder and the path that this one found."""
    environment, folder, path = dict(os.environ), os.getcwd(), list(sys.path)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(folder)
        sys.path[:] = path


def _opened(path: str) -> Reader:
    return read(Opened(os.open(path, os.O_RDONLY | os.O_CLOEXEC), Path(path)), path)


async def _ran_plain(
    context: Context, plain: BatchedItems, items: list[Indexed]
) -> tuple[Columns, e.Items]:
    """Run all items in one call, one after the other in this process. They have no provenance."""
    loop, size = context.step.loop, context.command.size
    name = loop.iterator if loop is not None else "item"
    named = loop_id(context.command)
    values, seconds = await plain.run(
        [LoopItem(index, value, name, size, named) for index, value in items]
    )
    micros = round(seconds * 1_000_000)
    failures = [
        (index, value)
        for (index, _), value in zip(items, values, strict=True)
        if isinstance(value, Failure)
    ]
    first_failed, first_error = failures[0] if failures else (None, None)
    count, ms = len(items), round(micros / 1_000 / len(items))
    columns: Columns = {
        "index": [index for index, _ in items],
        "status": ["ok"] * count
        if not failures
        else ["error" if isinstance(v, Failure) else "ok" for v in values],
        "error": [None] * count
        if not failures
        else [v.shown() if isinstance(v, Failure) else None for v in values],
        "ms": pa.repeat(pa.scalar(ms, pa.int64()), count),
        "tries": pa.repeat(pa.scalar(1, pa.int64()), count),
        "result": values
        if not failures
        else [None if isinstance(v, Failure) else v for v in values],
    }
    done = e.Items(
        ok=count - len(failures),
        failed=len(failures),
        micros=micros,
        first_failed=first_failed,
        first_error=first_error,
    )
    return columns, done


async def _ran(
    context: Context, items: list[Indexed], names: list[str]
) -> tuple[Columns, e.Items, dict[str, Any]]:
    """Whatever an item's next try waits for is waited for here: nobody else would go on with it."""
    batch = ItemBatch(context, items, 0)
    await batch.run()
    results = batch.results
    while later := [
        (position, each.deferred)
        for position, each in enumerate(results)
        if each.deferred is not None
    ]:
        tries = later[0][1].attempts
        now = [(position, wait) for position, wait in later if wait.attempts == tries]
        await asyncio.sleep(max(wait.delay for _, wait in now) / 1_000_000)
        again = ItemBatch(_after(context, tries), [items[position] for position, _ in now], 0)
        await again.run()
        for (position, _), result in zip(now, again.results, strict=True):
            results[position] = result
    rows = [result.row or {} for result in results]
    columns: Columns = {name: [row.get(name) for row in rows] for name in names}
    shared = shared_provenance(row.get("provenance", {}) for row in rows)
    return columns, counted(0, results, batch.folded(results)), shared


def _after(context: Context, tries: int) -> Context:
    command = replace(context.command, attempts=tries)
    return Context.make(context.env, context.plan, command, _unheard, 0, 1)


# ---- what the pipeline needs ---------------------------------------------------------------------------------------------


class TaskClock:
    def now(self) -> Micros:
        return time.time_ns() // 1000


async def _unheard(sent: OutgoingEvent) -> None:
    """Items of a batch keep no journal."""


async def _context(work: dict[str, Any]) -> Context:
    plan = pickle.loads(base64.b64decode(work["plan"]))  # noqa: S301 - our own worker made it
    command = decode_command(base64.b64decode(work["command"]))
    store = ResultsMemory()
    results = dict(command.scope.results)
    for step, value in msgspec.json.decode(base64.b64decode(work["known"])).items():
        where = address(command.execution_id, "result", step, "known")
        results[step] = replace(results[step], reference=await store.put(where, value))
    command = replace(
        command, scope=replace(command.scope, results=results), together=work["together"]
    )
    registry = Registry((InlinePython(),), built_in())
    keychain = partial(AskedKeychain, work["ticket"])
    env = Environment(
        store=store, registry=registry, clock=TaskClock(), worker="spark", keychain=keychain
    )
    return Context.make(env, plan, command, _unheard, 0, 1)


# ---- what comes of it ----------------------------------------------------------------------------------------------------


def _rows(schema: pa.Schema, columns: Columns) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [_column(field, columns[field.name]) for field in schema], schema=schema
    )


def _column(field: pa.Field, values: list[Any] | pa.Array) -> pa.Array:
    if isinstance(values, pa.Array):
        return values
    if not isinstance(field.type, pa.JsonType):
        return pa.array(values, field.type)
    texts = pa.array(
        [None if value is None else _text(value) for value in values], pa.binary()
    ).cast(pa.string())
    return pa.ExtensionArray.from_storage(field.type, texts)


class RowBuffer:
    """Rows until there are enough of them for a group of the file."""

    def __init__(self, file: pq.ParquetWriter) -> None:
        self._file = file
        self._batches: list[pa.RecordBatch] = []
        self._bytes = 0

    def add(self, rows: pa.RecordBatch) -> None:
        self._batches.append(rows)
        self._bytes += rows.nbytes
        if self._bytes >= MEMORY:
            self.write()

    def write(self) -> None:
        if self._batches:
            self._file.write_table(pa.Table.from_batches(self._batches))
        self._batches, self._bytes = [], 0


def _text(value: Any) -> bytes | None:
    """Without null: a result that is nothing is no result."""
    text = bytes(value) if type(value) is msgspec.Raw else _encode(value)
    return None if text == b"null" else text


_encode = msgspec.json.Encoder().encode


def _file(path: Path, rows: int) -> dict[str, Any]:
    found = sha256()
    with path.open("rb") as file:
        while data := file.read(1 << 20):
            found.update(data)
    return {
        "path": str(path),
        "rows": rows,
        "bytes": path.stat().st_size,
        "sha256": found.hexdigest(),
    }


def _say(path: Path, text: str) -> None:
    """Whole or not at all; whoever watches looks at it while the others run."""
    part = path.with_name(f".{uuid4().hex}")
    part.write_text(text)
    part.rename(path)
