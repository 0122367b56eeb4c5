"""Results as templates see them: by reference until a part is used.

`Payloads` is what this command has read or made lately. A `Stored` value asks it for parts; what is not there raises `NeedsData`,
the renderer loads it and evaluates again. Rows are read by range, so one item of a million costs one item.
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
# Keys of an envelope's context with a meaning of their own; every other key is a scalar of the payload's top level.
RESERVED: Final = frozenset(
    {*FACTS, SELECTIONS, "row_count", "columns", "results", "stats", "value", NO_VALUE}
)
ANSWER: Final = frozenset(
    ("status_code", "headers", "url", "elapsed", "data")
)  # keys of the value of an HTTP call
MISSING: Final = object()
KEPT = (
    32 * 1024 * 1024
)  # bytes, as stored, of what a command keeps in memory from one template to the next
MOST_ROWS = 1_000_000  # of a row set as one value in memory
ROW = 100  # bytes that a row weighs at least, however well it was packed
LINKED = 4 * 1024  # bytes of a value that is rather named than stored again
GAPS = 10_000  # items of a chunk that may have no row in its part: they were put off


@dataclass(frozen=True, slots=True)
class Whole:
    reference: Reference


@dataclass(frozen=True, slots=True)
class RowRange:
    reference: Reference
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class HeadOf:
    """What a value has beside its rows."""

    reference: Reference


Key = tuple[
    str, str | None, int, int
]  # of what is kept: address, member that the rows are, and which of them
_ALL, _HEAD = (0, -1), (-1, -1)


def _weight(reference: Reference, rows: int | None) -> int:
    """What so many rows take, about; None: all that is there."""
    stored = reference.bytes or 0
    if rows is None:
        return max(stored, ROW * (reference.rows or 0))
    return rows * max(stored // max(reference.rows or 1, 1), ROW)


def by_uri(uri: str) -> Reference:
    """A reference of which only the address is known; its checksum is not checked."""
    return Reference(ref_id=RefId(""), type="kv", uri=uri)


def is_rowset(reference: Reference) -> bool:
    return reference.format in (ARROW, PARQUET, PARTS)


def is_manifest(reference: Reference) -> bool:
    return reference.format == MANIFEST


class ResultReader:
    """`execution_id` is whose data `fetch` may read, beside what the server itself named (`known`)."""

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
        self._kept: OrderedDict[Key, tuple[Any, int, Reference | None]] = (
            OrderedDict()
        )  # whole values name their payload
        self._bytes = 0
        self._manifest_parts: dict[str, list[AddPart]] = {}
        self.read: dict[
            RefId, None
        ] = {}  # what results of this command were made from, in order of use

    # ---- what is here ----------------------------------------------------------------------------------------------------

    def whole(self, reference: Reference) -> Any:
        found = self._here((reference.uri, reference.rows_at, *_ALL))
        if found is MISSING:
            raise NeedsData(Whole(reference))
        return found

    def head(self, reference: Reference) -> dict[str, Any]:
        found = self._here((reference.uri, reference.rows_at, *_HEAD))
        if found is MISSING:
            raise NeedsData(HeadOf(reference))
        head: dict[str, Any] = found
        return head

    def has(self, reference: Reference) -> bool:
        return (reference.uri, reference.rows_at, *_ALL) in self._kept

    def rows(self, reference: Reference, start: int, stop: int) -> list[Any]:
        if self.has(reference):
            whole: list[Any] = self.whole(reference)
            return whole[start:stop]
        found = self._here((reference.uri, None, start, stop))
        if found is MISSING:
            raise NeedsData(RowRange(reference, start, stop))
        rows: list[Any] = found
        return rows

    def _here(self, key: Key) -> Any:
        found = self._kept.get(key)
        if found is None:
            return MISSING
        self._kept.move_to_end(key)
        return found[0]

    def keep(self, reference: Reference, value: Any) -> None:
        self._keep(
            (reference.uri, reference.rows_at, *_ALL), value, _weight(reference, None), reference
        )

    def _keep(self, key: Key, value: Any, weight: int, whole: Reference | None = None) -> None:
        self._bytes += weight - self._kept.get(key, (None, 0, None))[1]
        self._kept[key] = value, weight, whole
        self._kept.move_to_end(key)

    def trim(self) -> None:
        """Between two templates, never within one: what was not used for longest leaves, while there is too much."""
        while self._bytes > KEPT and len(self._kept) > 1:
            _, (_, weight, _) = self._kept.popitem(last=False)
            self._bytes -= weight

    def drop(self, reference: Reference) -> None:
        """No name stands for it any more; should one, it is read again."""
        _, weight, _ = self._kept.pop((reference.uri, reference.rows_at, *_ALL), (None, 0, None))
        self._bytes -= weight

    def stored_as(self, value: Any) -> Reference | None:
        """The payload that this very value was read from or put as, when it is large or only its address is known."""
        reference = self._kept_as(value, has_body=True)
        is_large = reference is not None and (
            _weight(reference, None) > LINKED or not reference.ref_id
        )
        return reference if is_large else None

    def reference_of(self, value: Any) -> Reference | None:
        """The payload that this very value was read from or put as, whatever its size; with its checksum."""
        reference = self._kept_as(value)
        return reference if reference is not None and reference.ref_id else None

    def _kept_as(self, value: Any, *, has_body: bool = False) -> Reference | None:
        """`has_body`: also of an HTTP value that was handed over with its `body`."""
        if not isinstance(value, list | dict | str):
            return None
        kept = [(each, whole) for each, _, whole in self._kept.values() if whole is not None]
        same = (whole for each, whole in kept if each is value)
        with_body = (whole for each, whole in kept if has_body and _is_with_body(value, each))
        return next(same, None) or next(with_body, None)

    def forget(self) -> None:
        """What was read or made so far. A command's parts refer to each other, so that only a rare collection would free it."""
        self._kept.clear()
        self._bytes = 0

    # ---- what is read ----------------------------------------------------------------------------------------------------

    async def load(self, request: object) -> None:
        match request:
            case Whole(reference):
                self.keep(reference, await self.resolve(reference))
            case RowRange(reference, start, stop):
                rows = await self.range(reference, start, stop)
                self._keep(
                    (reference.uri, None, start, stop), rows, _weight(reference, stop - start)
                )
            case HeadOf(reference):
                self._keep(
                    (reference.uri, reference.rows_at, *_HEAD),
                    await self._read_head(reference),
                    ROW,
                )
            case KeychainLookup() | Handle():
                await self.keychain.load(request)
            case _:
                raise TypeError(f"cannot load {request!r}")

    async def resolve(self, reference: Reference) -> Any:
        if is_manifest(reference):
            return await self.range(reference, 0, await self.size(reference))
        if is_rowset(reference) and (size := reference.rows or 0) > MOST_ROWS:
            raise Failing(_too_many(reference, size))
        if (
            is_rowset(reference) and reference.rows_at is None
        ):  # maybe the rows of a map, without the map
            return await self.range(reference, 0, size)
        if reference.format == PARTS:
            return (await self._named(reference)).head.around(
                await self.range(reference, 0, reference.rows or 0)
            )
        self.note(reference)
        return await _readable(reference.uri, lambda: self._store.resolve(reference))

    async def unlinked(self, value: Any) -> Any:
        """The value with what its links name, also inside maps, in their place."""
        if not isinstance(value, dict):
            return value
        if is_reference(value):
            return with_body(await self.resolve(linked(value)))
        if is_wrapped(value):
            return value[LITERAL]
        return {name: await self.unlinked(part) for name, part in value.items()}

    async def open(self, reference: Reference) -> Any:
        """A stored row set, to be read by batches: a `rowsets.Reader`, which whoever asks closes."""
        from noetl.results import rowsets  # Arrow: only who reads row sets pays for it

        if reference.format == PARTS:
            manifest = await self._named(reference)
            return rowsets.Joined(manifest.head, [await self.open(part) for part in manifest.parts])
        self.note(reference)
        source = await _readable(reference.uri, lambda: self._store.open(reference))
        reader = await _readable(
            reference.uri, lambda: asyncio.to_thread(rowsets.read, source, reference.uri)
        )
        if (
            reference.ref_id and reference.rows_at is None
        ):  # the rows alone, whatever they are a member of
            reader.head = Head()
        return reader

    async def fetch(self, uri: str) -> Any:
        """What an address leads to: a value, or a reader of rows. It may have been written by anybody."""
        try:
            foreign = parse_uri(uri).execution_id != self._execution_id
        except BadReference as error:
            raise Failing(
                Failure(code=error.code, kind="config", message=f"{error}; {error.hint}")
            ) from error
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
        return await (self.open(reference) if rowset else self.resolve(reference))

    async def _named(self, reference: Reference) -> PartsManifest:
        """The files of a row set that has several."""
        self.note(reference)
        plain = replace(reference, format=JSON, rows=None, rows_at=None)
        return msgspec.convert(
            await _readable(reference.uri, lambda: self._store.resolve(plain)), PartsManifest
        )

    async def _in_files(self, reference: Reference, start: int, stop: int) -> list[Any]:
        found: list[Any] = []
        begin = 0
        for part in (await self._named(reference)).parts:
            end = begin + (part.rows or 0)
            if start < end and stop > begin:
                found += await self.range(part, max(start - begin, 0), min(stop, end) - begin)
            begin = end
        return found

    async def _read_head(self, reference: Reference) -> dict[str, Any]:
        if reference.format == PARTS:
            return dict((await self._named(reference)).head.rest)
        reader = await self.open(reference)
        try:
            return dict(reader.head.rest)
        finally:
            await asyncio.to_thread(reader.close)

    async def range(self, reference: Reference, start: int, stop: int) -> list[Any]:
        """Items [start, stop); of a loop's result, one value per item."""
        if reference.format == PARTS:
            return await self._in_files(reference, start, stop)
        if not is_manifest(reference):
            self.note(reference)
            return list(
                await _readable(reference.uri, lambda: self._store.rows(reference, start, stop))
            )
        rows = await self.item_rows(reference, start, stop)
        return [item_value(rows[index]) if index in rows else None for index in range(start, stop)]

    # ---- loops -------------------------------------------------------------------------------------------------------------

    async def item_rows(
        self, reference: Reference, start: int, stop: int
    ) -> dict[int, dict[str, Any]]:
        """Rows (index, status, error, ms, tries, result) of a loop's items [start, stop) that ran, by index. A loop that was
        retried begins with the manifest of the run before it; items that ran again stand over theirs."""
        parts = await self._parts(reference)
        if parts and is_manifest(parts[0].reference):
            found = await self.item_rows(parts[0].reference, start, stop)
            return found | await self._chosen(parts[1:], start, stop)
        likely = [
            part for part in parts if part.first < stop and part.first + part.count + GAPS > start
        ]
        found = {}
        for part in likely:
            found |= await self._part(part, start, stop)
        if len(found) == stop - start or len(likely) == len(parts):
            return found
        others = [part for part in parts if part.first + part.count + GAPS <= start]
        return found | await self._chosen(others, start, stop)

    async def _part(self, part: AddPart, start: int, stop: int) -> dict[int, dict[str, Any]]:
        """Its rows are in order of their indexes, the first one's is `first` or more: item i is row i - first, or one before."""
        low, high = (
            max(0, min(start - part.first, part.count - 1)),
            min(part.count, stop - part.first),
        )
        rows = await self._shifted(part, low, high)
        while low > 0 and rows and rows[0]["index"] > start:
            earlier = max(0, low - (rows[0]["index"] - start))
            rows = await self._shifted(part, earlier, low) + rows
            low = earlier
        return {row["index"]: row for row in rows if start <= row["index"] < stop}

    async def _chosen(
        self, parts: list[AddPart], start: int, stop: int
    ) -> dict[int, dict[str, Any]]:
        """Of parts whose rows may have any index."""
        found: dict[int, dict[str, Any]] = {}
        for part in parts:
            rows = await self._shifted(part, 0, part.count)
            found |= {row["index"]: row for row in rows if start <= row["index"] < stop}
        return found

    async def _shifted(self, part: AddPart, low: int, high: int) -> list[dict[str, Any]]:
        """Rows [low, high) of a part, with their index in the loop."""
        rows = await self.range(part.reference, low, high)
        return [{**row, "index": row["index"] + part.shift} for row in rows] if part.shift else rows

    async def size(self, reference: Reference) -> int:
        if reference.rows is not None:
            return reference.rows
        if is_manifest(reference):
            return sum(part.count for part in await self._parts(reference))
        return len(await self.resolve(reference))

    async def _parts(self, reference: Reference) -> list[AddPart]:
        """Of a loop that has ended: they stay as they are."""
        name = reference.uri.rpartition("/")[2]
        if name not in self._manifest_parts:
            self._manifest_parts[name] = sorted(await self.parts(name), key=lambda part: part.first)
        return self._manifest_parts[name]

    async def parts(self, manifest: str) -> list[AddPart]:
        """Of a loop's result, or of the pages of a call."""
        return list(await _readable(manifest, lambda: self._manifests(manifest)))

    def note(self, reference: Reference) -> None:
        """Of a loop's result its parts are noted, as they are read."""
        if not is_manifest(reference):
            self.read[reference.ref_id or ref_id_of(reference.uri)] = None


def _too_many(reference: Reference, size: int) -> Failure:
    message = f"{reference.uri} has {size} rows, too many for one value; take a slice, loop over it, or query it with duckdb"
    return Failure(code="RESULT_TOO_LARGE", kind="result", message=message)


async def _readable(what: str, ask: Callable[[], Awaitable[Any]]) -> Any:
    """A store that is unavailable is asked again for a while; then the task fails, retryable."""
    try:
        return await patiently(ask)
    except Unavailable as error:
        raise Failing(_unreadable(what, str(error), retryable=True)) from error
    except Expired as error:
        raise Failing(
            Failure(code=error.code, kind="store", message=f"{error}; {error.hint}")
        ) from error
    except (InvalidInput, CorruptLog) as error:
        raise Failing(_unreadable(what, str(error), retryable=False)) from error


def _unreadable(what: str, why: str, *, retryable: bool) -> Failure:
    message = f"{what} cannot be read: {why}"
    return Failure(
        code="REFERENCE_NOT_AVAILABLE", kind="store", message=message, retryable=retryable
    )


def item_value(row: dict[str, Any]) -> Any:
    """`<step>.rows[i]`: the item's value, or its failure."""
    return (
        {"status": "error", "error": row.get("error")}
        if row["status"] == "error"
        else row.get("result")
    )


def with_body(value: Any) -> Any:
    """The value of an HTTP call as it is handed over: `body` is the same as `data`. Anything else as it is."""
    if isinstance(value, dict) and value.keys() >= ANSWER and "body" not in value:
        return {**value, "body": value["data"]}
    return value


def as_stored(value: Any) -> Any:
    """Without what `with_body` added: nothing is stored twice."""
    if (
        isinstance(value, dict)
        and value.keys() >= ANSWER
        and value.get("body", value) is value["data"]
    ):
        return {name: part for name, part in value.items() if name != "body"}
    return value


def _is_with_body(value: Any, stored: Any) -> bool:
    """Is it what `with_body` made of that? No other value has the very same map of headers."""
    answers = (
        isinstance(stored, dict)
        and isinstance(value, dict)
        and stored.keys() >= ANSWER <= value.keys()
    )
    return answers and value["headers"] is stored["headers"] and value["data"] is stored["data"]


class LazyResult:
    """A Lazy over one result. Its own keys win over the facts of its envelope (`rows`, `row_count`, `ref`, `status` …)."""

    def __init__(self, envelope: Envelope, payloads: ResultReader, value: Any = MISSING) -> None:
        self.envelope = envelope
        self._payloads = payloads
        self._value = value if envelope.reference is None else MISSING
        if envelope.reference is not None and value is not MISSING:
            payloads.keep(envelope.reference, value)
        if envelope.reference is None and value is MISSING:
            self._value = envelope.context.get("value")

    def member(self, name: str) -> Any:
        self._note()
        context = self.envelope.context
        if (table := self.table) is not None:
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
        """The reference, when the value is a map whose rows are stored as a row set, and it is not in memory."""
        reference = self.envelope.reference
        return (
            reference
            if reference is not None and reference.rows_at is not None and not self._here
            else None
        )

    def _of_table(self, table: Reference, name: str) -> Any:
        context = self.envelope.context
        if name == table.rows_at:
            listed = replace(table, rows_at=None)
            return LazyResult(replace(self.envelope, reference=listed, context={}), self._payloads)
        if name in context and (name not in RESERVED or name in ("row_count", "columns")):
            return context[name]
        head = self._payloads.head(table)
        return head[name] if name in head else self._fact(name)

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
                return self.length() if self._is_list() else envelope.context["row_count"]
            case "results":
                return {task: self._task(found) for task, found in self._tasks().items()}
            case "error" if envelope.error is None:
                return NO_ERROR
            case "ref" | "status" | "error" | "context" | "meta":
                return view(envelope)[name]
            case "http" | "pg" | "py" | "spark" | "columns" | "stats":
                return envelope.context[name]
            case _:
                raise LookupError(name)

    def facts(self) -> dict[str, Any]:
        """What can be read of a result that has no value."""
        found = view(self.envelope)
        if "results" in self.envelope.context:
            found["results"] = self._fact("results")
        return found

    def _linked(self, name: str, found: Any) -> Any:
        """A member that is stored by itself: one of several frames. A tool's own data may look like that, but cannot name what
        was stored for this member."""
        whole = self.envelope.reference
        if whole is None or not is_reference(found) or not isinstance(found[REFERENCE], dict):
            return found
        if not is_member_uri(whole.uri, name, found[REFERENCE].get("uri")):
            return found
        reference = msgspec.convert(found[REFERENCE], Reference)
        known = {"row_count": reference.rows} if reference.rows_at is not None else {}
        return LazyResult(Envelope(status="ok", reference=reference, context=known), self._payloads)

    def _tasks(self) -> dict[str, Any]:
        listed: dict[str, Any] = self.envelope.context["results"]
        if REFERENCE in listed:  # too many for the context
            listed = self._payloads.whole(msgspec.convert(listed[REFERENCE], Reference))
        return listed

    def _task(self, found: Any) -> Any:
        if found is None:
            return None
        return LazyResult(
            Envelope(status="ok", reference=msgspec.convert(found, Reference)), self._payloads
        )

    def item(self, index: int | slice) -> Any:
        self._note()
        if self.table is not None:
            raise LookupError(index)
        size = self.rows_known
        if size is None or self._here:
            value = self.plain()
            if isinstance(index, slice):
                return value[index]
            return item(value, index, "item") if not isinstance(value, list) else value[index]
        reference = self.envelope.reference
        assert reference is not None
        if isinstance(index, int):
            if not -size <= index < size:
                raise LookupError(index)
            return self._payloads.rows(reference, index % size, index % size + 1)[0]
        start, stop, stride = index.indices(size)
        if stride != 1:
            return self.plain()[index]
        return self._payloads.rows(reference, start, max(start, stop))

    def length(self) -> int:
        self._note()
        if self.rows_known is not None:
            return self.rows_known
        if (table := self.table) is not None:
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
        return self._value if reference is None else self._payloads.whole(reference)

    def _note(self) -> None:
        """Whatever is used of it, its envelope's scalars too, was made from it."""
        if (reference := self.envelope.reference) is not None:
            self._payloads.note(reference)

    @property
    def rows_known(self) -> int | None:
        """How many rows, when the payload is known to be a list."""
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
        return self.rows_known is not None or (
            self.table is None and isinstance(self.plain(), list)
        )


class HttpValue:
    """The value of an HTTP call: what it lacks itself is looked for in its `data`."""

    def __init__(self, inner: LazyResult) -> None:
        self.inner = inner

    def member(self, name: str) -> Any:
        if self.inner.table is not None:  # its `data` is a list
            return self.inner.member(name)
        value = self.plain()
        if isinstance(value, dict) and name not in value and "data" in value:
            found = member(value["data"], name, name)
            if isinstance(value["data"], dict) and name in value["data"]:
                return found
        return self.inner.member(name)

    def item(self, index: int | slice) -> Any:
        return self.inner.item(index)

    def length(self) -> int:
        return self.inner.length()

    def plain(self) -> Any:
        return self.inner.plain()


def answer(stored: LazyResult) -> LazyResult | HttpValue:
    return HttpValue(stored) if "http" in stored.envelope.context else stored


def value_of(stored: LazyResult, name: str, what: str) -> LazyResult | Undefined:
    """The result as templates see it under this name. A failed step or task (`what`, such as "step load") has no value, only
    facts such as `status` and `error`."""
    because = stored.envelope.why_no_value(what)
    return without_value(name, because, stored.facts()) if because else stored


def view(envelope: Envelope) -> dict[str, Any]:
    """`output` without its data."""
    context = {name: value for name, value in envelope.context.items() if name != SELECTIONS}
    shown = {fact: context[fact] for fact in (*FACTS, "stats") if fact in context}
    if envelope.error is not None:
        shown["error"] = envelope.error.shown()
    return shown | {
        "status": "ok" if envelope.ok else envelope.status,
        "ref": None if envelope.reference is None else envelope.reference.uri,
        "meta": {} if envelope.meta is None else msgspec.to_builtins(envelope.meta),
        "context": context,
        "row_count": context.get("row_count"),
        "columns": context.get("columns"),
    }


def held(value: Any, payloads: ResultReader) -> Any:
    """A ctx value with every link in it made a Lazy."""
    if not isinstance(value, dict):
        return value
    if is_reference(value):
        reference = linked(value)
        payloads.known.add(reference.uri)
        return LazyResult(Envelope(status="ok", reference=reference), payloads)
    if is_wrapped(value):
        return value[LITERAL]
    return {name: held(part, payloads) for name, part in value.items()}
