"""Results as templates see them: by reference until a part is used.

`ResultReader` holds what this command has read or made recently. A `LazyResult` asks it for parts.
A part that is not in memory raises `NeedsData`; the renderer loads it and evaluates the template
again. Rows are read by range, so one item of a million costs one item.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from noetl.model.decisions import AddPart
from noetl.model.envelope import NO_VALUE, SELECTIONS, Envelope
from noetl.model.errors import BadReference, CorruptLog, Expired, Failure, InvalidInput, Unavailable
from noetl.model.ids import ExecutionId, RefId
from noetl.model.reference import Reference, is_member_uri, parse_uri
from noetl.pipeline.environment import Manifests
from noetl.pipeline.failures import Failing
from noetl.pipeline.keychain import Handle, Keychain, KeychainLookup
from noetl.pipeline.patience import patiently
from noetl.playbook.assignments import LITERAL, REFERENCE, is_reference, is_wrapped, linked
from noetl.playbook.expressions import (
    NO_ERROR,
    FailedError,
    NeedsData,
    Undefined,
    item,
    kind_of,
    member,
    without_value,
)
from noetl.results.encoding import ARROW, JSON, PARQUET, PARTS, ref_id_of
from noetl.results.encoding import is_rowset as starts_rowset
from noetl.results.port import ResultStore
from noetl.results.tables import Head, PartsManifest
from noetl.tools.secrets import HANDLE

MANIFEST = "manifest"
FACTS = ("http", "pg", "py", "spark")
# Keys of an envelope's context with a meaning of their own; every other key is a scalar of the
# payload's top level.
RESERVED: Final = frozenset(
    {*FACTS, SELECTIONS, "row_count", "columns", "results", "stats", "value", NO_VALUE}
)
# The keys of the value of an HTTP call.
ANSWER: Final = frozenset(("status_code", "headers", "url", "elapsed", "data"))
MISSING: Final = object()
KEPT = 32 * 1024 * 1024  # bytes, as stored, that a command keeps in memory between two templates
MOST_ROWS = 1_000_000  # of a row set that becomes one value in memory
ROW = 100  # bytes that a row counts at least, however well it is compressed
LINKED = 4 * 1024  # bytes; a larger value is named by its reference instead of stored again
GAPS = 10_000  # items of a chunk that may have no row in its part, because they were deferred


@dataclass(frozen=True, slots=True)
class Whole:
    """Asked for by a template: the whole value of a payload."""

    reference: Reference


@dataclass(frozen=True, slots=True)
class RowRange:
    """Asked for by a template: rows [start, stop) of a payload."""

    reference: Reference
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class HeadOf:
    """Asked for by a template: what a value holds beside its rows."""

    reference: Reference


# The key of a value in memory: its address, the member that holds its rows, and the range of rows.
Key = tuple[str, str | None, int, int]
_ALL, _HEAD = (0, -1), (-1, -1)


def _weight(reference: Reference, rows: int | None) -> int:
    """The approximate bytes of so many rows; of the whole payload if `rows` is None."""
    stored = reference.bytes or 0
    if rows is None:
        return max(stored, ROW * (reference.rows or 0))
    return rows * max(stored // max(reference.rows or 1, 1), ROW)


def by_uri(uri: str) -> Reference:
    """A reference that only has an address. Reading it checks no checksum."""
    return Reference(
        ref_id=RefId(""),
        type="kv",
        uri=uri,
    )


def is_rowset(reference: Reference) -> bool:
    return reference.format in (ARROW, PARQUET, PARTS)


def is_manifest(reference: Reference) -> bool:
    return reference.format == MANIFEST


class ResultReader:
    """Reads the payloads that one command uses, and keeps recent ones in memory.

    `fetch_uri` may read data of the execution `execution_id`, and what the server itself named
    (`allowed_uris`).
    """

    def __init__(
        self,
        store: ResultStore,
        manifests: Manifests,
        keychain: Keychain | None = None,
        execution_id: ExecutionId | None = None,
    ) -> None:
        self.keychain = keychain or Keychain()
        self.known: set[str] = set()
        self._execution_id = execution_id
        self._store = store
        self._manifests = manifests
        # Value, weight in bytes and, for a whole value, its payload.
        self._kept: OrderedDict[Key, tuple[Any, int, Reference | None]] = OrderedDict()
        self._bytes = 0
        self._manifest_parts: dict[str, list[AddPart]] = {}
        # The payloads that results of this command are made from, in order of use.
        self.read: dict[RefId, None] = {}

    # ---- values in memory ------------------------------------------------------------------------

    def whole(self, reference: Reference) -> Any:
        value = self._here((reference.uri, reference.rows_at, *_ALL))
        if value is MISSING:
            raise NeedsData(Whole(reference))
        return value

    def head(self, reference: Reference) -> dict[str, Any]:
        kept = self._here((reference.uri, reference.rows_at, *_HEAD))
        if kept is MISSING:
            raise NeedsData(HeadOf(reference))
        head: dict[str, Any] = kept
        return head

    def has(self, reference: Reference) -> bool:
        return (reference.uri, reference.rows_at, *_ALL) in self._kept

    def rows(self, reference: Reference, start: int, stop: int) -> list[Any]:
        if self.has(reference):
            whole: list[Any] = self.whole(reference)
            return whole[start:stop]
        kept = self._here((reference.uri, None, start, stop))
        if kept is MISSING:
            raise NeedsData(RowRange(reference, start, stop))
        rows: list[Any] = kept
        return rows

    def _here(self, key: Key) -> Any:
        entry = self._kept.get(key)
        if entry is None:
            return MISSING
        self._kept.move_to_end(key)
        return entry[0]

    def keep(self, reference: Reference, value: Any) -> None:
        key = (reference.uri, reference.rows_at, *_ALL)
        self._keep(key, value, _weight(reference, None), reference)

    def _keep(
        self,
        key: Key,
        value: Any,
        weight: int,
        whole: Reference | None = None,
    ) -> None:
        former = self._kept.get(key)
        if former is not None:
            self._bytes -= former[1]
        self._bytes += weight
        self._kept[key] = value, weight, whole
        self._kept.move_to_end(key)

    def trim(self) -> None:
        """Drop the least recently used values while they exceed the limit.

        Called between two templates, never while one is evaluated.
        """
        while self._bytes > KEPT and len(self._kept) > 1:
            _, (_, weight, _) = self._kept.popitem(last=False)
            self._bytes -= weight

    def drop(self, reference: Reference) -> None:
        """Drop a value that no name refers to any more. If one does, the value is read again."""
        key = (reference.uri, reference.rows_at, *_ALL)
        entry = self._kept.pop(key, None)
        if entry is not None:
            self._bytes -= entry[1]

    def stored_as(self, value: Any) -> Reference | None:
        """The payload that this very object was read from or stored as.

        None for a small value that has a checksum: storing it again is cheap.
        """
        reference = self._kept_as(value, has_body=True)
        if reference is None:
            return None
        is_large = _weight(reference, None) > LINKED
        if is_large or not reference.ref_id:
            return reference
        return None

    def reference_of(self, value: Any) -> Reference | None:
        """The payload that this very object was read from or stored as, if it has a checksum."""
        reference = self._kept_as(value)
        if reference is None or not reference.ref_id:
            return None
        return reference

    def _kept_as(self, value: Any, *, has_body: bool = False) -> Reference | None:
        """With `has_body`, an HTTP value that was handed over with its `body` is found too."""
        if not isinstance(value, list | dict | str):
            return None
        wholes = [entry for entry in self._kept.values() if entry[2] is not None]
        for kept, _, reference in wholes:
            if kept is value:
                return reference
        if has_body:
            for kept, _, reference in wholes:
                if _is_with_body(value, kept):
                    return reference
        return None

    def forget(self) -> None:
        """Drop everything that was read or made so far.

        The objects of a command refer to each other, so otherwise only the garbage collector would
        free the data.
        """
        self._kept.clear()
        self._bytes = 0

    # ---- reading the store -----------------------------------------------------------------------

    async def load(self, request: object) -> None:
        """Bring into memory what a template asked for."""
        match request:
            case Whole(reference):
                self.keep(reference, await self.resolve(reference))
            case RowRange(reference, start, stop):
                rows = await self.range(reference, start, stop)
                key = (reference.uri, None, start, stop)
                self._keep(key, rows, _weight(reference, stop - start))
            case HeadOf(reference):
                head = await self._read_head(reference)
                self._keep((reference.uri, reference.rows_at, *_HEAD), head, ROW)
            case KeychainLookup() | Handle():
                await self.keychain.load(request)
            case _:
                raise TypeError(f"cannot load {request!r}")

    async def resolve(self, reference: Reference) -> Any:
        """The whole value. Fails if it is a row set with too many rows."""
        if is_manifest(reference):
            return await self.range(reference, 0, await self.size(reference))
        if is_rowset(reference):
            size = reference.rows or 0
            if size > MOST_ROWS:
                raise Failing(_too_many(reference, size))
            if reference.rows_at is None:  # the payload may be a map, but only its rows are wanted
                return await self.range(reference, 0, size)
        if reference.format == PARTS:
            manifest = await self._named(reference)
            rows = await self.range(reference, 0, reference.rows or 0)
            return manifest.head.around(rows)
        self.note(reference)
        return await _readable(reference.uri, lambda: self._store.resolve(reference))

    async def unlinked(self, value: Any) -> Any:
        """The value with every link in it, also inside maps, replaced by the payload it names."""
        if not isinstance(value, dict):
            return value
        if is_reference(value):
            return with_body(await self.resolve(linked(value)))
        if is_wrapped(value):
            return value[LITERAL]
        return {name: await self.unlinked(part) for name, part in value.items()}

    async def open(self, reference: Reference) -> Any:
        """A stored row set as a `rowsets.Reader`, to be read in batches. The caller closes it."""
        from noetl.results import (
            rowsets,
        )  # loads Arrow, which commands without row sets do not need

        if reference.format == PARTS:
            manifest = await self._named(reference)
            readers = [await self.open(part) for part in manifest.parts]
            return rowsets.Joined(manifest.head, readers)
        self.note(reference)
        source = await _readable(reference.uri, lambda: self._store.open(reference))
        reader = await _readable(
            reference.uri, lambda: asyncio.to_thread(rowsets.read, source, reference.uri)
        )
        if reference.ref_id and reference.rows_at is None:
            reader.head = Head()  # only the rows are wanted, not the map around them
        return reader

    async def fetch(self, uri: str) -> Any:
        """What an address leads to: a value, or a reader of rows.

        Anybody may have written the address, so this checks that the execution may read it.
        """
        try:
            foreign = parse_uri(uri).execution_id != self._execution_id
        except BadReference as error:
            failure = Failure(code=error.code, kind="config", message=f"{error}; {error.hint}")
            raise Failing(failure) from error
        if foreign and uri not in self.known:
            message = f"{uri} belongs to another execution, which has not given it to this one"
            raise Failing(Failure(code="REFERENCE_FORBIDDEN", kind="auth", message=message))
        reference = by_uri(uri)
        source = await _readable(uri, lambda: self._store.open(reference))
        try:
            rowset = starts_rowset(await asyncio.to_thread(source.read, 0, 4))
        finally:
            await asyncio.to_thread(source.close)
        self.read[ref_id_of(uri)] = None
        if rowset:
            return await self.open(reference)
        return await self.resolve(reference)

    async def _named(self, reference: Reference) -> PartsManifest:
        """The manifest of a row set that is stored in several files."""
        self.note(reference)
        as_json = replace(
            reference,
            format=JSON,
            rows=None,
            rows_at=None,
        )
        manifest = await _readable(reference.uri, lambda: self._store.resolve(as_json))
        return msgspec.convert(manifest, PartsManifest)

    async def _in_files(
        self,
        reference: Reference,
        start: int,
        stop: int,
    ) -> list[Any]:
        """Rows [start, stop) of a row set that is stored in several files."""
        manifest = await self._named(reference)
        rows: list[Any] = []
        begin = 0
        for part in manifest.parts:
            end = begin + (part.rows or 0)
            if start < end and stop > begin:
                low = max(start - begin, 0)
                high = min(stop, end) - begin
                rows += await self.range(part, low, high)
            begin = end
        return rows

    async def _read_head(self, reference: Reference) -> dict[str, Any]:
        if reference.format == PARTS:
            manifest = await self._named(reference)
            return dict(manifest.head.rest)
        reader = await self.open(reference)
        try:
            return dict(reader.head.rest)
        finally:
            await asyncio.to_thread(reader.close)

    async def range(
        self,
        reference: Reference,
        start: int,
        stop: int,
    ) -> list[Any]:
        """Items [start, stop). For the result of a loop, one value per item."""
        if reference.format == PARTS:
            return await self._in_files(reference, start, stop)
        if is_manifest(reference):
            rows = await self.item_rows(reference, start, stop)
            return [
                item_value(rows[index]) if index in rows else None for index in range(start, stop)
            ]
        self.note(reference)
        return list(
            await _readable(reference.uri, lambda: self._store.rows(reference, start, stop))
        )

    # ---- results of loops ------------------------------------------------------------------------

    async def item_rows(
        self, reference: Reference, start: int, stop: int
    ) -> dict[int, dict[str, Any]]:
        """The rows (index, status, error, ms, tries, result) of the items [start, stop) that ran.

        Returns them by index. A loop that was retried begins with the manifest of the earlier run;
        the row of an item that ran again replaces the earlier one.
        """
        parts = await self._parts(reference)
        if parts and is_manifest(parts[0].reference):
            rows_by_index = await self.item_rows(parts[0].reference, start, stop)
            return rows_by_index | await self._chosen(parts[1:], start, stop)
        rows_by_index = {}
        others: list[AddPart] = []
        for part in parts:
            end = part.first + part.count + GAPS
            if part.first < stop and end > start:
                rows_by_index |= await self._part(part, start, stop)
            elif end <= start:
                others.append(part)
        if len(rows_by_index) == stop - start:
            return rows_by_index
        return rows_by_index | await self._chosen(others, start, stop)

    async def _part(
        self,
        part: AddPart,
        start: int,
        stop: int,
    ) -> dict[int, dict[str, Any]]:
        """Rows of the items [start, stop) in one part, by index.

        Rows are in the order of their indexes. The first index is `first` or more, so the row of
        item i is row i - first, or one before it.
        """
        low = max(0, min(start - part.first, part.count - 1))
        high = min(part.count, stop - part.first)
        rows = await self._shifted(part, low, high)
        while low > 0 and rows and rows[0]["index"] > start:
            earlier = max(0, low - (rows[0]["index"] - start))
            rows = await self._shifted(part, earlier, low) + rows
            low = earlier
        return {row["index"]: row for row in rows if start <= row["index"] < stop}

    async def _chosen(
        self, parts: list[AddPart], start: int, stop: int
    ) -> dict[int, dict[str, Any]]:
        """Rows of the items [start, stop), by index, from parts that hold indexes in any order."""
        rows_by_index: dict[int, dict[str, Any]] = {}
        for part in parts:
            rows = await self._shifted(part, 0, part.count)
            rows_by_index |= {row["index"]: row for row in rows if start <= row["index"] < stop}
        return rows_by_index

    async def _shifted(
        self,
        part: AddPart,
        low: int,
        high: int,
    ) -> list[dict[str, Any]]:
        """Rows [low, high) of a part, with their index in the loop."""
        rows = await self.range(part.reference, low, high)
        if not part.shift:
            return rows
        return [{**row, "index": row["index"] + part.shift} for row in rows]

    async def size(self, reference: Reference) -> int:
        """The number of items."""
        if reference.rows is not None:
            return reference.rows
        if is_manifest(reference):
            parts = await self._parts(reference)
            return sum(part.count for part in parts)
        return len(await self.resolve(reference))

    async def _parts(self, reference: Reference) -> list[AddPart]:
        """The parts of a manifest, in order.

        Only a loop that has ended has a manifest, so they never change.
        """
        name = reference.uri.rpartition("/")[2]
        if name not in self._manifest_parts:
            parts = await self.parts(name)
            parts.sort(key=lambda part: part.first)
            self._manifest_parts[name] = parts
        return self._manifest_parts[name]

    async def parts(self, manifest: str) -> list[AddPart]:
        """The parts of the result of a loop, or of the pages of a call."""
        return list(await _readable(manifest, lambda: self._manifests(manifest)))

    def note(self, reference: Reference) -> None:
        """Note a payload as an input of this command's results.

        A manifest is not noted: its parts are, when they are read.
        """
        if not is_manifest(reference):
            self.read[reference.ref_id or ref_id_of(reference.uri)] = None


def _too_many(reference: Reference, size: int) -> Failure:
    message = f"{reference.uri} has {size} rows, too many for one value; take a slice, loop over it, or query it with duckdb"
    return Failure(code="RESULT_TOO_LARGE", kind="result", message=message)


async def _readable(what: str, ask: Callable[[], Awaitable[Any]]) -> Any:
    """Read, with retries while the store is unavailable. Raises Failing when that does not help."""
    try:
        return await patiently(ask)
    except Unavailable as error:
        raise Failing(_unreadable(what, str(error), retryable=True)) from error
    except Expired as error:
        failure = Failure(code=error.code, kind="store", message=f"{error}; {error.hint}")
        raise Failing(failure) from error
    except (InvalidInput, CorruptLog) as error:
        raise Failing(_unreadable(what, str(error), retryable=False)) from error


def _unreadable(what: str, why: str, *, retryable: bool) -> Failure:
    message = f"{what} cannot be read: {why}"
    return Failure(
        code="REFERENCE_NOT_AVAILABLE",
        kind="store",
        message=message,
        retryable=retryable,
    )


def item_value(row: dict[str, Any]) -> Any:
    """`<step>.rows[i]`: the item's value, or its failure."""
    if row["status"] == "error":
        return {"status": "error", "error": row.get("error")}
    return row.get("result")


def with_body(value: Any) -> Any:
    """The value of an HTTP call as templates and tools get it: `body` is the same as `data`.

    Other values are returned as they are.
    """
    if isinstance(value, dict) and value.keys() >= ANSWER and "body" not in value:
        return {**value, "body": value["data"]}
    return value


def as_stored(value: Any) -> Any:
    """The value of an HTTP call without the `body` that is the same as its `data`, so that nothing
    is stored twice."""
    if not isinstance(value, dict) or not value.keys() >= ANSWER:
        return value
    if value.get("body", value) is not value["data"]:
        return value
    return {name: part for name, part in value.items() if name != "body"}


def _is_with_body(value: Any, stored: Any) -> bool:
    """Whether `value` is `stored` with a `body` added: both then share their map of headers."""
    if not isinstance(stored, dict) or not isinstance(value, dict):
        return False
    if not (stored.keys() >= ANSWER <= value.keys()):
        return False
    return value["headers"] is stored["headers"] and value["data"] is stored["data"]


class LazyResult:
    """A Lazy over one result.

    The keys of its value win over the facts of its envelope (`rows`, `row_count`, `ref`, `status`
    …).
    """

    def __init__(
        self,
        envelope: Envelope,
        payloads: ResultReader,
        value: Any = MISSING,
    ) -> None:
        self.envelope = envelope
        self._payloads = payloads
        self._value: Any = MISSING
        if envelope.reference is not None:
            if value is not MISSING:
                payloads.keep(envelope.reference, value)
        elif value is MISSING:
            self._value = envelope.context.get("value")
        else:
            self._value = value

    def member(self, name: str) -> Any:
        self._note()
        context = self.envelope.context
        table = self.table
        if table is not None:
            return self._of_table(table, name)
        if self.rows_known is None:
            if name in context and name not in RESERVED and not self._here:
                return context[name]
            value = self.plain()
            if isinstance(value, dict) and name in value:
                return self._linked(name, value[name])
            if name == "value" and isinstance(value, dict) and HANDLE in value:
                return self._payloads.keychain.secret(value[HANDLE], value.get("provider"))
        return self._fact(name)

    @property
    def table(self) -> Reference | None:
        """The reference, if the value is a map with its rows stored as a row set and is not in
        memory."""
        reference = self.envelope.reference
        if reference is None or reference.rows_at is None or self._here:
            return None
        return reference

    def _of_table(self, table: Reference, name: str) -> Any:
        """A member of a map that has its rows stored as a row set."""
        context = self.envelope.context
        if name == table.rows_at:
            rows = replace(table, rows_at=None)
            envelope = replace(self.envelope, reference=rows, context={})
            return LazyResult(envelope, self._payloads)
        if name in context and (name not in RESERVED or name in ("row_count", "columns")):
            return context[name]
        head = self._payloads.head(table)
        if name in head:
            return head[name]
        return self._fact(name)

    def _fact(self, name: str) -> Any:
        envelope = self.envelope
        match name:
            case "rows" if self._is_list():
                return self
            case "body" if "http" in envelope.context:
                return self.member("data")
            case "data":
                return self
            case "row_count":
                if self._is_list():
                    return self.length()
                return envelope.context["row_count"]
            case "results":
                return {task: self._task(reference) for task, reference in self._tasks().items()}
            case "error" if envelope.error is None:
                return NO_ERROR
            case "ref" | "status" | "error" | "context" | "meta":
                return view(envelope)[name]
            case "http" | "pg" | "py" | "spark" | "columns" | "stats":
                return envelope.context[name]
            case _:
                raise LookupError(name)

    def facts(self) -> dict[str, Any]:
        """What a template can read of a result that has no value."""
        facts = view(self.envelope)
        if "results" in self.envelope.context:
            facts["results"] = self._fact("results")
        return facts

    def _linked(self, name: str, value: Any) -> Any:
        """The member `name`. If it is one of several frames, it is stored as a payload of its own.

        A tool's own data may look like a link, but it cannot name the address of this member.
        """
        whole = self.envelope.reference
        if whole is None or not is_reference(value) or not isinstance(value[REFERENCE], dict):
            return value
        if not is_member_uri(whole.uri, name, value[REFERENCE].get("uri")):
            return value
        reference = msgspec.convert(value[REFERENCE], Reference)
        context = {}
        if reference.rows_at is not None:
            context = {"row_count": reference.rows}
        envelope = Envelope(
            status="ok",
            reference=reference,
            context=context,
        )
        return LazyResult(envelope, self._payloads)

    def _tasks(self) -> dict[str, Any]:
        """The references of a pipeline's tasks, by name."""
        listed: dict[str, Any] = self.envelope.context["results"]
        if REFERENCE in listed:  # there are too many for the context
            listed = self._payloads.whole(msgspec.convert(listed[REFERENCE], Reference))
        return listed

    def _task(self, reference: Any) -> Any:
        if reference is None:
            return None
        envelope = Envelope(status="ok", reference=msgspec.convert(reference, Reference))
        return LazyResult(envelope, self._payloads)

    def item(self, index: int | slice) -> Any:
        self._note()
        if self.table is not None:
            raise LookupError(index)
        size = self.rows_known
        if size is None or self._here:
            value = self.plain()
            if isinstance(value, list) or isinstance(index, slice):
                return value[index]
            return item(value, index, "item")
        reference = self.envelope.reference
        assert reference is not None
        if isinstance(index, int):
            if not -size <= index < size:
                raise LookupError(index)
            position = index % size
            return self._payloads.rows(reference, position, position + 1)[0]
        start, stop, stride = index.indices(size)
        if stride != 1:
            return self.plain()[index]
        return self._payloads.rows(reference, start, max(start, stop))

    def length(self) -> int:
        self._note()
        size = self.rows_known
        if size is not None:
            return size
        table = self.table
        if table is not None:
            return len(self._payloads.head(table))
        value = self.plain()
        if isinstance(value, list | dict | str):
            return len(value)
        raise FailedError(f"{kind_of(value)} has no length")

    def plain(self) -> Any:
        return with_body(self.stored())

    def stored(self) -> Any:
        """The value as the store has it."""
        self._note()
        reference = self.envelope.reference
        if reference is None:
            return self._value
        return self._payloads.whole(reference)

    def _note(self) -> None:
        """Note the payload as an input: any use counts, also of the envelope's scalars."""
        reference = self.envelope.reference
        if reference is not None:
            self._payloads.note(reference)

    @property
    def rows_known(self) -> int | None:
        """The number of rows, if the payload is known to be a list."""
        reference = self.envelope.reference
        if reference is None or self._here or reference.rows_at is not None:
            return None
        if reference.rows is None and is_manifest(reference):
            return self.envelope.context.get("row_count")
        return reference.rows

    @property
    def _here(self) -> bool:
        reference = self.envelope.reference
        return reference is None or self._payloads.has(reference)

    def _is_list(self) -> bool:
        if self.rows_known is not None:
            return True
        return self.table is None and isinstance(self.plain(), list)


class HttpValue:
    """The value of an HTTP call. A name that the value itself lacks is looked up in its `data`."""

    def __init__(self, inner: LazyResult) -> None:
        self.inner = inner

    def member(self, name: str) -> Any:
        if self.inner.table is not None:  # its `data` is a list
            return self.inner.member(name)
        value = self.plain()
        if isinstance(value, dict) and name not in value and "data" in value:
            data = value["data"]
            found = member(data, name, name)
            if isinstance(data, dict) and name in data:
                return found
        return self.inner.member(name)

    def item(self, index: int | slice) -> Any:
        return self.inner.item(index)

    def length(self) -> int:
        return self.inner.length()

    def plain(self) -> Any:
        return self.inner.plain()


def answer(stored: LazyResult) -> LazyResult | HttpValue:
    """The result as `response` and `result` show it."""
    if "http" in stored.envelope.context:
        return HttpValue(stored)
    return stored


def value_of(
    stored: LazyResult,
    name: str,
    what: str,
) -> LazyResult | Undefined:
    """The result as templates see it under this name.

    A failed step or task (`what`, such as "step load") has no value, only facts such as `status`
    and `error`.
    """
    because = stored.envelope.why_no_value(what)
    if because:
        return without_value(name, because, stored.facts())
    return stored


def view(envelope: Envelope) -> dict[str, Any]:
    """`output` without its data."""
    context = {name: value for name, value in envelope.context.items() if name != SELECTIONS}
    shown = {fact: context[fact] for fact in (*FACTS, "stats") if fact in context}
    if envelope.error is not None:
        shown["error"] = envelope.error.shown()
    uri = None
    if envelope.reference is not None:
        uri = envelope.reference.uri
    meta = {}
    if envelope.meta is not None:
        meta = msgspec.to_builtins(envelope.meta)
    return shown | {
        "status": "ok" if envelope.ok else envelope.status,
        "ref": uri,
        "meta": meta,
        "context": context,
        "row_count": context.get("row_count"),
        "columns": context.get("columns"),
    }


def held(value: Any, payloads: ResultReader) -> Any:
    """A value of `ctx` with every link in it replaced by a Lazy."""
    if not isinstance(value, dict):
        return value
    if is_reference(value):
        reference = linked(value)
        payloads.known.add(reference.uri)
        return LazyResult(Envelope(status="ok", reference=reference), payloads)
    if is_wrapped(value):
        return value[LITERAL]
    return {name: held(part, payloads) for name, part in value.items()}
