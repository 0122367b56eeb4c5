"""Runs the items of a loop inside Spark's tasks: the pipeline of the step, with the worker's code.

A shard is a range of the collection. Its task reads the items, runs them, and writes their rows to
a file. Spark gets only a report: the file, its contents in numbers, and how the items ended. A task
that Spark runs twice writes two files; the report of one of them counts. Python code runs in the
process of the task, and its inputs and results pass as JSON as they do on a worker.
"""

import asyncio
import base64
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
from noetl.model.clock import format_iso
from noetl.model.codec import decode_command
from noetl.model.errors import Failure
from noetl.model.failure_kinds import count_failure_kinds
from noetl.model.ids import Micros
from noetl.model.reference import make_address
from noetl.pipeline.context import CommandContext
from noetl.pipeline.environment import Environment, OutgoingEvent
from noetl.pipeline.loop.batched_items import BatchedItems
from noetl.pipeline.loop.chunk import ItemBatch, add_counts, count_results, find_bounds
from noetl.pipeline.loop.collections import IndexedItem
from noetl.pipeline.output.provenance import merge_provenance
from noetl.pipeline.scope.names import LoopItem, make_loop_id
from noetl.results.formats.rowsets import JoinedReader, RowSetReader, list_rows, open_rowset_reader
from noetl.results.formats.tables import ValueHead
from noetl.results.sources import FileSource
from noetl.results.tiers.memory import ResultsMemory
from noetl.spark.messages import FileFacts, LoopWork, ShardReport, encode_message
from noetl.spark.tasks.entry import choose_row_schema
from noetl.spark.tasks.inline_python import InlinePython
from noetl.spark.tasks.secrets import RedactedStdout, TicketKeychain
from noetl.tools.credentials.oauth import TokenCache
from noetl.tools.egress.guard import EgressGuard
from noetl.tools.registry import Registry, make_factories

Columns = dict[str, list[Any] | pa.Array]  # the columns of the rows of items, by name
MAX_ITEMS_AT_ONCE = 4_000  # the most items that run together
# Bytes of items that run together, and of rows that are written together.
MAX_BUFFERED_BYTES = 4 << 20


def run_numbered_shards(
    work: LoopWork, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Run the shards with the numbers in the batches. Yields their reports."""
    for batch in batches:
        for number in batch.column(0).to_pylist():
            report = encode_message(Shard(work, number).run()).decode()
            yield pa.RecordBatch.from_pydict({"shard": [number], "told": [report]})


class Shard:
    """A range of the collection, which one task runs."""

    def __init__(self, work: LoopWork, number: int) -> None:
        self._work = work
        self._number = number
        self._first = number * work.chunk
        self._stop = min(self._first + work.chunk, work.size)
        self._path = Path(work.folder, f"part-{number:05}-{uuid4().hex}.parquet")

    def run(self) -> ShardReport:
        with _restore_process_state(), asyncio.Runner() as runner:
            items, provenance = runner.run(self._run_items())
        file = _describe_shard_file(self._path, self._stop - self._first)
        report_path = Path(self._work.reports, str(self._number))
        _write_report(report_path, encode_message(items))
        return ShardReport(file, items, provenance)

    async def _run_items(self) -> tuple[e.Items, dict[str, Any]]:
        """Run all items. Returns how they ended, and the provenance that they share."""
        context = await _make_task_context(self._work)
        loop = context.step.loop
        assert loop is not None, "only loops come here"
        reduce = {name: str(reducer) for name, reducer in loop.spec.reduce.items()}
        now = format_iso(context.env.clock.now())
        plain = BatchedItems.from_shared(context.shared, context.make_writes(), now)
        totals = e.Items(first=self._first)
        provenance: dict[str, Any] = {}
        schema = choose_row_schema(self._work)
        writing = pq.ParquetWriter(
            self._path,
            schema,
            compression="zstd",
            compression_level=1,
            write_page_checksum=True,
        )
        redactor = context.env.redactor
        out = RedactedStdout(sys.stdout, redactor)
        err = RedactedStdout(sys.stderr, redactor)
        try:
            with writing as file, redirect_stdout(out), redirect_stderr(err):
                rows = RowBuffer(file)
                for items in self._read_items():
                    if plain is None:
                        columns, done, shared = await _run_pipeline_items(
                            context, items, schema.names
                        )
                        provenance = merge_provenance((provenance, shared))
                    else:
                        columns, done = await _run_plain_items(context, plain, items)
                    rows.add(redactor.redact_rows(_make_rows(schema, columns)))
                    if self._work.source.indexed:
                        done = replace(done, indexes=find_bounds([index for index, _ in items]))
                    totals = add_counts(reduce, totals, done)
                rows.write()
        finally:
            out.end_line()
            err.end_line()
            await context.env.registry.close()
        report = {"items": msgspec.to_builtins(totals), "provenance": provenance}
        redacted = redactor.redact_value(report, payload=True)
        return msgspec.convert(redacted["items"], e.Items), redacted["provenance"]

    def _read_items(self) -> Iterator[list[IndexedItem]]:
        """The items with their indexes, in lists that may run together."""
        source = self._work.source
        reader = JoinedReader(ValueHead(), [_open_reader(path) for path in source.paths])
        try:
            position = self._first
            for batch in reader.batches(self._first, self._stop):
                items_in_memory = MAX_BUFFERED_BYTES * batch.num_rows // max(batch.nbytes, 1)
                count = max(1, min(MAX_ITEMS_AT_ONCE, items_in_memory))
                for low in range(0, batch.num_rows, count):
                    rows = list_rows(batch.slice(low, count))
                    if source.indexed:
                        yield [(row["index"], row["item"]) for row in rows]
                    else:
                        yield list(enumerate(rows, position))
                    position += len(rows)
        finally:
            reader.close()


@contextmanager
def _restore_process_state() -> Iterator[None]:
    """Restore the environment, the current folder and the import path afterwards: the process runs
    shards of other loops too."""
    environment = dict(os.environ)
    folder = os.getcwd()
    path = list(sys.path)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(folder)
        sys.path[:] = path


def _open_reader(path: str) -> RowSetReader:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    return open_rowset_reader(FileSource(descriptor, Path(path)), path)


async def _run_plain_items(
    context: CommandContext,
    plain: BatchedItems,
    items: list[IndexedItem],
) -> tuple[Columns, e.Items]:
    """Run all items in one call, one after the other in this process. They have no provenance."""
    loop, size = context.step.loop, context.command.size
    name = loop.iterator if loop is not None else "item"
    identity = make_loop_id(context.command)
    values: list[Any] = [None] * len(items)
    micros = 0.0

    def keep_value(position: int, value: Any, seconds: float, at_once: int) -> None:
        nonlocal micros
        values[position] = value
        micros += seconds * 1_000_000

    await plain.run_items(
        [LoopItem(index, value, name, size, identity) for index, value in items], keep_value
    )
    failures = [
        (index, value)
        for (index, _), value in zip(items, values, strict=True)
        if isinstance(value, Failure)
    ]
    count, ms = len(items), round(micros / 1_000 / len(items))
    columns: Columns = {
        "index": [index for index, _ in items],
        "ms": pa.repeat(pa.scalar(ms, pa.int64()), count),
        "tries": pa.repeat(pa.scalar(1, pa.int64()), count),
    }
    if not failures:
        columns |= {
            "status": ["ok"] * count,
            "error": [None] * count,
            "result": values,
        }
        return columns, e.Items(ok=count, micros=round(micros))
    columns |= _make_outcome_columns(values)
    first_failed, first_error = failures[0]
    done = e.Items(
        ok=count - len(failures),
        failed=len(failures),
        micros=round(micros),
        first_failed=first_failed,
        first_error=first_error,
        kinds=count_failure_kinds(failures),
    )
    return columns, done


def _make_outcome_columns(values: list[Any]) -> Columns:
    """The columns status, error and result of items of which some failed."""
    statuses: list[Any] = []
    errors: list[Any] = []
    results: list[Any] = []
    for value in values:
        if isinstance(value, Failure):
            statuses.append("error")
            errors.append(value.to_template_map())
            results.append(None)
        else:
            statuses.append("ok")
            errors.append(None)
            results.append(value)
    return {"status": statuses, "error": errors, "result": results}


async def _run_pipeline_items(
    context: CommandContext,
    items: list[IndexedItem],
    names: list[str],
) -> tuple[Columns, e.Items, dict[str, Any]]:
    """Run items through the pipeline. Retries of items wait in this task, because no other process
    would continue them."""
    batch = ItemBatch(context, items, 0)
    await batch.run()
    results = batch.ordered_results
    while deferred := [
        (position, result.deferred)
        for position, result in enumerate(results)
        if result.deferred is not None
    ]:
        attempts = deferred[0][1].attempts
        next_items = [(position, wait) for position, wait in deferred if wait.attempts == attempts]
        longest_delay = max(wait.delay for _, wait in next_items)
        await asyncio.sleep(longest_delay / 1_000_000)
        retried = [items[position] for position, _ in next_items]
        retry = ItemBatch(_make_retry_context(context, attempts), retried, 0)
        await retry.run()
        for (position, _), result in zip(next_items, retry.ordered_results, strict=True):
            results[position] = result
    rows = [result.row or {} for result in results]
    columns: Columns = {name: [row.get(name) for row in rows] for name in names}
    shared = merge_provenance(row.get("provenance", {}) for row in rows)
    return columns, count_results(0, results, batch.fold_reduced_writes(results)), shared


def _make_retry_context(context: CommandContext, tries: int) -> CommandContext:
    """The context of the next try of items that were tried so often."""
    command = replace(context.command, attempts=tries)
    return CommandContext.for_command(context.env, context.plan, command, _drop_event, 0, 1)


# ---- the environment of the pipeline -------------------------------------------------------------------------------------


class TaskClock:
    def now(self) -> Micros:
        return time.time_ns() // 1000


async def _drop_event(sent: OutgoingEvent) -> None:
    """Items of a batch keep no journal."""


async def _make_task_context(work: LoopWork) -> CommandContext:
    """The pipeline context of the loop, with the results that its templates read."""
    plan = pickle.loads(base64.b64decode(work.plan))  # noqa: S301 - our own worker made it
    command = decode_command(base64.b64decode(work.command))
    store = ResultsMemory()
    results = dict(command.scope.results)
    known = msgspec.json.decode(base64.b64decode(work.known))
    for step, value in known.items():
        where = make_address(command.execution_id, "result", step, "known")
        reference = await store.put(where, value)
        results[step] = replace(results[step], reference=reference)
    scope = replace(command.scope, results=results)
    command = replace(command, scope=scope, together=work.together)
    guard = EgressGuard(work.egress)
    registry = Registry((InlinePython(),), make_factories(guard), guard)
    keychain = partial(TicketKeychain, work.ticket)
    env = Environment(
        store=store,
        registry=registry,
        clock=TaskClock(),
        worker="spark",
        tokens=TokenCache(guard),
        keychain=keychain,
    )
    return CommandContext.for_command(env, plan, command, _drop_event, 0, 1)


# ---- the file of rows ----------------------------------------------------------------------------------------------------


def _make_rows(schema: pa.Schema, columns: Columns) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [_make_item_column(field, columns[field.name]) for field in schema], schema=schema
    )


def _make_item_column(field: pa.Field, values: list[Any] | pa.Array) -> pa.Array:
    if isinstance(values, pa.Array):
        return values
    if not isinstance(field.type, pa.JsonType):
        return pa.array(values, field.type)
    texts = pa.array(
        [None if value is None else _encode_cell(value) for value in values], pa.binary()
    ).cast(pa.string())
    return pa.ExtensionArray.from_storage(field.type, texts)


class RowBuffer:
    """Collects rows until they fill a row group of the file."""

    def __init__(self, file: pq.ParquetWriter) -> None:
        self._file = file
        self._batches: list[pa.RecordBatch] = []
        self._bytes = 0

    def add(self, rows: pa.RecordBatch) -> None:
        self._batches.append(rows)
        self._bytes += rows.nbytes
        if self._bytes >= MAX_BUFFERED_BYTES:
            self.write()

    def write(self) -> None:
        if self._batches:
            self._file.write_table(pa.Table.from_batches(self._batches))
        self._batches, self._bytes = [], 0


def _encode_cell(value: Any) -> bytes | None:
    """The JSON text of a value. A null becomes an empty cell."""
    text = bytes(value) if type(value) is msgspec.Raw else _encode(value)
    return None if text == b"null" else text


_encode = msgspec.json.Encoder().encode


def _describe_shard_file(path: Path, rows: int) -> FileFacts:
    """The description of the file for the report."""
    digest = sha256()
    with path.open("rb") as file:
        while data := file.read(1 << 20):
            digest.update(data)
    return FileFacts(str(path), path.stat().st_size, rows, digest.hexdigest())


def _write_report(path: Path, data: bytes) -> None:
    """Write the file atomically: the worker reads it while other shards run."""
    part = path.with_name(f".{uuid4().hex}")
    part.write_bytes(data)
    part.rename(path)
