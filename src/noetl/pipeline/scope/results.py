"""Reads stored results: `ResultReader` holds what this command has read or made recently.

A part that is not in memory raises `NeedsData`; the rendering loads it and evaluates the template
again. Rows are read by range, so one item of a million costs one item.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from operator import itemgetter
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from noetl.caches import WeightedLruCache
from noetl.model.decisions import AddPart
from noetl.model.errors import BadReference, CorruptLog, Expired, Failure, InvalidInput, Unavailable
from noetl.model.ids import ExecutionId, RefId
from noetl.model.reference import Reference, derive_ref_id, parse_uri
from noetl.pipeline.environment import ReadManifest
from noetl.pipeline.failures import TaskFailed
from noetl.pipeline.retries import retry_while_unavailable
from noetl.pipeline.scope.http_values import add_body, has_body_of
from noetl.pipeline.secrets.keychain import Keychain, KeychainLookup, SecretHandle
from noetl.playbook.assignments import (
    LITERAL_KEY,
    is_reference,
    is_wrapped,
    read_link,
)
from noetl.results.formats.encoding import ARROW, JSON, PARQUET, PARTS
from noetl.results.formats.encoding import is_rowset as starts_rowset
from noetl.results.formats.shared_records import SharedRecords
from noetl.results.formats.tables import PartsManifest, ValueHead
from noetl.results.port import ResultStore
from noetl.template.errors import NeedsData

MANIFEST = "manifest"
MISSING: Final = object()
# Bytes, as stored, that a command keeps in memory between two templates.
MAX_KEPT_BYTES = 32 * 1024 * 1024
MAX_VALUE_ROWS = 1_000_000  # of a row set that becomes one value in memory
MIN_ROW_BYTES = 100  # bytes that a row counts at least, however well it is compressed
# Bytes; a larger value is named by its reference instead of stored again.
MIN_LINKED_BYTES = 4 * 1024
# Items of a chunk that may have no row in its part, because they were deferred.
MAX_DEFERRED_ITEMS = 10_000


class WholeValue(Struct, frozen=True):
    """Asked for by a template: the whole value of a payload."""

    reference: Reference


class RowRange(Struct, frozen=True):
    """Asked for by a template: rows [start, stop) of a payload."""

    reference: Reference
    start: int
    stop: int


class HeadOfRows(Struct, frozen=True):
    """Asked for by a template: what a value holds beside its rows."""

    reference: Reference


# The key of a value in memory: its address, the member that holds its rows, and the range of rows.
MemoryKey = tuple[str, str | None, int, int]
# A value in memory, its weight in bytes and, for a whole value, its payload.
KeptValue = tuple[Any, int, Reference | None]
_ALL, _HEAD = (0, -1), (-1, -1)


def _estimate_bytes(reference: Reference, rows: int | None) -> int:
    """The approximate bytes of so many rows; of the whole payload if `rows` is None."""
    stored = reference.bytes or 0
    if rows is None:
        return max(stored, MIN_ROW_BYTES * (reference.rows or 0))
    return rows * max(stored // max(reference.rows or 1, 1), MIN_ROW_BYTES)


def reference_from_uri(uri: str) -> Reference:
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
        manifests: ReadManifest,
        keychain: Keychain | None = None,
        execution_id: ExecutionId | None = None,
    ) -> None:
        self.keychain = keychain or Keychain()
        self.allowed_uris: set[str] = set()
        self._execution_id = execution_id
        self._store = store
        self._manifests = manifests
        self._kept: WeightedLruCache[MemoryKey, KeptValue] = WeightedLruCache(
            MAX_KEPT_BYTES, itemgetter(1), min_entries=1
        )
        self._evaluations = 0  # threads that evaluate a template with these values
        self._manifest_parts: dict[str, list[AddPart]] = {}
        # The payloads that results of this command are made from, in order of use.
        self.inputs_read: dict[RefId, None] = {}

    # ---- values in memory ------------------------------------------------------------------------

    def get_whole(self, reference: Reference) -> Any:
        value = self._find_kept((reference.uri, reference.rows_at, *_ALL))
        if value is MISSING:
            raise NeedsData(WholeValue(reference))
        return value

    def get_head(self, reference: Reference) -> dict[str, Any]:
        kept = self._find_kept((reference.uri, reference.rows_at, *_HEAD))
        if kept is MISSING:
            raise NeedsData(HeadOfRows(reference))
        head: dict[str, Any] = kept
        return head

    def is_in_memory(self, reference: Reference) -> bool:
        return (reference.uri, reference.rows_at, *_ALL) in self._kept

    def get_rows(self, reference: Reference, start: int, stop: int) -> list[Any]:
        if self.is_in_memory(reference):
            whole: list[Any] = self.get_whole(reference)
            return whole[start:stop]
        kept = self._find_kept((reference.uri, None, start, stop))
        if kept is MISSING:
            raise NeedsData(RowRange(reference, start, stop))
        rows: list[Any] = kept
        return rows

    def _find_kept(self, key: MemoryKey) -> Any:
        try:
            entry = self._kept.get(key)
        except KeyError:  # a template in a thread reads a value that was dropped just now
            entry = None
        if entry is None:
            return MISSING
        return entry[0]

    def keep_value(self, reference: Reference, value: Any) -> None:
        key = (reference.uri, reference.rows_at, *_ALL)
        self._keep_entry(key, value, _estimate_bytes(reference, None), reference)

    def _keep_entry(
        self,
        key: MemoryKey,
        value: Any,
        weight: int,
        whole: Reference | None = None,
    ) -> None:
        self._kept.add_untrimmed(key, (value, weight, whole))

    def trim(self) -> None:
        """Drop the least recently used values while they exceed the limit.

        Called between two templates. While a thread evaluates one, everything is kept.
        """
        if not self._evaluations:
            self._kept.trim()

    @contextmanager
    def keep_all(self) -> Iterator[None]:
        """Drop nothing while a thread evaluates a template."""
        self._evaluations += 1
        try:
            yield
        finally:
            self._evaluations -= 1

    def drop(self, reference: Reference) -> None:
        """Drop a value that no name refers to any more. If one does, the value is read again."""
        self._kept.pop((reference.uri, reference.rows_at, *_ALL))

    def find_large_payload(self, value: Any) -> Reference | None:
        """The payload that this very object was read from or stored as.

        None for a small value that has a checksum: storing it again is cheap.
        """
        reference = self._find_kept_payload(value, has_body=True)
        if reference is None:
            return None
        is_large = _estimate_bytes(reference, None) > MIN_LINKED_BYTES
        if is_large or not reference.ref_id:
            return reference
        return None

    def find_payload(self, value: Any) -> Reference | None:
        """The payload that this very object was read from or stored as, if it has a checksum."""
        reference = self._find_kept_payload(value)
        if reference is None or not reference.ref_id:
            return None
        return reference

    def _find_kept_payload(self, value: Any, *, has_body: bool = False) -> Reference | None:
        """With `has_body`, an HTTP value that was handed over with its `body` is found too."""
        if not isinstance(value, list | dict | str):
            return None
        wholes = [entry for entry in self._kept.values() if entry[2] is not None]
        for kept, _, reference in wholes:
            if kept is value:
                return reference
        if has_body:
            for kept, _, reference in wholes:
                if has_body_of(value, kept):
                    return reference
        return None

    def forget(self) -> None:
        """Drop everything that was read or made so far.

        The objects of a command refer to each other, so otherwise only the garbage collector would
        free the data.
        """
        self._kept.clear()

    # ---- reading the store -----------------------------------------------------------------------

    async def load(self, request: object) -> None:
        """Bring into memory what a template asked for."""
        match request:
            case WholeValue(reference):
                self.keep_value(reference, await self.resolve(reference))
            case RowRange(reference, start, stop):
                rows = await self.read_item_range(reference, start, stop)
                key = (reference.uri, None, start, stop)
                self._keep_entry(key, rows, _estimate_bytes(reference, stop - start))
            case HeadOfRows(reference):
                head = await self._read_head(reference)
                self._keep_entry((reference.uri, reference.rows_at, *_HEAD), head, MIN_ROW_BYTES)
            case KeychainLookup() | SecretHandle():
                await self.keychain.load(request)
            case _:
                raise TypeError(f"cannot load {request!r}")

    async def resolve(self, reference: Reference) -> Any:
        """The whole value. Fails if it is a row set with too many rows."""
        if is_manifest(reference):
            return await self.read_item_range(
                reference, 0, await self.count_stored_items(reference)
            )
        if is_rowset(reference):
            size = reference.rows or 0
            if size > MAX_VALUE_ROWS:
                raise TaskFailed(_too_many_rows_failure(reference, size))
            if reference.rows_at is None:  # the payload may be a map, but only its rows are wanted
                return await self.read_item_range(reference, 0, size)
        if reference.format == PARTS:
            manifest = await self._read_parts_manifest(reference)
            rows = await self.read_item_range(reference, 0, reference.rows or 0)
            return manifest.head.wrap_rows(rows)
        self.note_input(reference)
        return await _read_with_retries(reference.uri, lambda: self._store.resolve(reference))

    async def resolve_links(self, value: Any) -> Any:
        """The value with every link in it, also inside maps, replaced by the payload it names."""
        if not isinstance(value, dict):
            return value
        if is_reference(value):
            return add_body(await self.resolve(read_link(value)))
        if is_wrapped(value):
            return value[LITERAL_KEY]
        return {name: await self.resolve_links(part) for name, part in value.items()}

    async def open_rowset(self, reference: Reference) -> Any:
        """A stored row set as a `RowSetReader`, to be read in batches. The caller closes it."""
        from noetl.results.formats import (
            rowsets,  # loads Arrow, which commands without row sets do not need
        )

        if reference.format == PARTS:
            manifest = await self._read_parts_manifest(reference)
            readers = [await self.open_rowset(part) for part in manifest.parts]
            return rowsets.JoinedReader(manifest.head, readers)
        self.note_input(reference)
        source = await _read_with_retries(reference.uri, lambda: self._store.open(reference))
        reader = await _read_with_retries(
            reference.uri,
            lambda: asyncio.to_thread(rowsets.open_rowset_reader, source, reference.uri),
        )
        if reference.ref_id and reference.rows_at is None:
            reader.head = ValueHead()  # only the rows are wanted, not the map around them
        return reader

    async def share_rowset(self, reference: Reference) -> SharedRecords:
        """A stored row set in shared memory."""
        reader = await self.open_rowset(reference)
        try:
            shared: SharedRecords = await _read_with_retries(
                reference.uri, lambda: asyncio.to_thread(reader.share_rows)
            )
        finally:
            await asyncio.to_thread(reader.close)
        return shared

    async def fetch_uri(self, uri: str) -> Any:
        """What an address leads to: a value, or a reader of rows.

        Anybody may have written the address, so this checks that the execution may read it.
        """
        try:
            foreign = parse_uri(uri).execution_id != self._execution_id
        except BadReference as error:
            failure = Failure(code=error.code, kind="config", message=f"{error}; {error.hint}")
            raise TaskFailed(failure) from error
        if foreign and uri not in self.allowed_uris:
            message = f"{uri} belongs to another execution, which has not given it to this one"
            raise TaskFailed(Failure(code="REFERENCE_FORBIDDEN", kind="auth", message=message))
        reference = reference_from_uri(uri)
        source = await _read_with_retries(uri, lambda: self._store.open(reference))
        try:
            rowset = starts_rowset(await asyncio.to_thread(source.read, 0, 4))
        finally:
            await asyncio.to_thread(source.close)
        self.inputs_read[derive_ref_id(uri)] = None
        if rowset:
            return await self.open_rowset(reference)
        return await self.resolve(reference)

    async def _read_parts_manifest(self, reference: Reference) -> PartsManifest:
        """The manifest of a row set that is stored in several files."""
        self.note_input(reference)
        as_json = replace(
            reference,
            format=JSON,
            rows=None,
            rows_at=None,
        )
        manifest = await _read_with_retries(reference.uri, lambda: self._store.resolve(as_json))
        return msgspec.convert(manifest, PartsManifest)

    async def _read_rows_of_files(
        self,
        reference: Reference,
        start: int,
        stop: int,
    ) -> list[Any]:
        """Rows [start, stop) of a row set that is stored in several files."""
        manifest = await self._read_parts_manifest(reference)
        rows: list[Any] = []
        begin = 0
        for part in manifest.parts:
            end = begin + (part.rows or 0)
            if start < end and stop > begin:
                low = max(start - begin, 0)
                high = min(stop, end) - begin
                rows += await self.read_item_range(part, low, high)
            begin = end
        return rows

    async def _read_head(self, reference: Reference) -> dict[str, Any]:
        if reference.format == PARTS:
            manifest = await self._read_parts_manifest(reference)
            return dict(manifest.head.rest)
        reader = await self.open_rowset(reference)
        try:
            return dict(reader.head.rest)
        finally:
            await asyncio.to_thread(reader.close)

    async def read_item_range(
        self,
        reference: Reference,
        start: int,
        stop: int,
    ) -> list[Any]:
        """Items [start, stop). For the result of a loop, one value per item."""
        if reference.format == PARTS:
            return await self._read_rows_of_files(reference, start, stop)
        if is_manifest(reference):
            rows = await self.read_item_rows(reference, start, stop)
            return [
                value_of_item_row(rows[index]) if index in rows else None
                for index in range(start, stop)
            ]
        self.note_input(reference)
        return list(
            await _read_with_retries(
                reference.uri, lambda: self._store.read_rows(reference, start, stop)
            )
        )

    # ---- results of loops ------------------------------------------------------------------------

    async def read_item_rows(
        self, reference: Reference, start: int, stop: int
    ) -> dict[int, dict[str, Any]]:
        """The rows (index, status, error, ms, tries, result) of the items [start, stop) that ran.

        Returns them by index. A loop that was retried begins with the manifest of the earlier run;
        the row of an item that ran again replaces the earlier one.
        """
        parts = await self._list_manifest_parts(reference)
        if parts and is_manifest(parts[0].reference):
            rows_by_index = await self.read_item_rows(parts[0].reference, start, stop)
            return rows_by_index | await self._search_parts(parts[1:], start, stop)
        rows_by_index = {}
        others: list[AddPart] = []
        for part in parts:
            end = part.first + part.count + MAX_DEFERRED_ITEMS
            if part.first < stop and end > start:
                rows_by_index |= await self._read_part_rows(part, start, stop)
            elif end <= start:
                others.append(part)
        if len(rows_by_index) == stop - start:
            return rows_by_index
        return rows_by_index | await self._search_parts(others, start, stop)

    async def _read_part_rows(
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
        rows = await self._read_shifted_rows(part, low, high)
        while low > 0 and rows and rows[0]["index"] > start:
            earlier = max(0, low - (rows[0]["index"] - start))
            rows = await self._read_shifted_rows(part, earlier, low) + rows
            low = earlier
        return {row["index"]: row for row in rows if start <= row["index"] < stop}

    async def _search_parts(
        self, parts: list[AddPart], start: int, stop: int
    ) -> dict[int, dict[str, Any]]:
        """Rows of the items [start, stop), by index, from parts that hold indexes in any order."""
        rows_by_index: dict[int, dict[str, Any]] = {}
        for part in parts:
            rows = await self._read_shifted_rows(part, 0, part.count)
            rows_by_index |= {row["index"]: row for row in rows if start <= row["index"] < stop}
        return rows_by_index

    async def _read_shifted_rows(
        self,
        part: AddPart,
        low: int,
        high: int,
    ) -> list[dict[str, Any]]:
        """Rows [low, high) of a part, with their index in the loop."""
        rows = await self.read_item_range(part.reference, low, high)
        if not part.shift:
            return rows
        return [{**row, "index": row["index"] + part.shift} for row in rows]

    async def count_stored_items(self, reference: Reference) -> int:
        """The number of items."""
        if reference.rows is not None:
            return reference.rows
        if is_manifest(reference):
            parts = await self._list_manifest_parts(reference)
            return sum(part.count for part in parts)
        return len(await self.resolve(reference))

    async def _list_manifest_parts(self, reference: Reference) -> list[AddPart]:
        """The parts of a manifest, in order.

        Only a loop that has ended has a manifest, so they never change.
        """
        name = reference.uri.rpartition("/")[2]
        if name not in self._manifest_parts:
            parts = await self.list_parts(name)
            parts.sort(key=lambda part: part.first)
            self._manifest_parts[name] = parts
        return self._manifest_parts[name]

    async def list_parts(self, manifest: str) -> list[AddPart]:
        """The parts of the result of a loop, or of the pages of a call."""
        return list(await _read_with_retries(manifest, lambda: self._manifests(manifest)))

    def note_input(self, reference: Reference) -> None:
        """Note a payload as an input of this command's results.

        A manifest is not noted: its parts are, when they are read.
        """
        if not is_manifest(reference):
            self.inputs_read[reference.ref_id or derive_ref_id(reference.uri)] = None


def _too_many_rows_failure(reference: Reference, size: int) -> Failure:
    message = f"{reference.uri} has {size} rows, too many for one value; take a slice, loop over it, or query it with duckdb"
    return Failure(code="RESULT_TOO_LARGE", kind="result", message=message)


async def _read_with_retries(what: str, ask: Callable[[], Awaitable[Any]]) -> Any:
    """Read, with retries while the store is unavailable. Raises Failing when that does not help."""
    try:
        return await retry_while_unavailable(ask)
    except Unavailable as error:
        raise TaskFailed(_unreadable_failure(what, str(error), retryable=True)) from error
    except Expired as error:
        failure = Failure(code=error.code, kind="store", message=f"{error}; {error.hint}")
        raise TaskFailed(failure) from error
    except (InvalidInput, CorruptLog) as error:
        raise TaskFailed(_unreadable_failure(what, str(error), retryable=False)) from error


def _unreadable_failure(what: str, why: str, *, retryable: bool) -> Failure:
    message = f"{what} cannot be read: {why}"
    return Failure(
        code="REFERENCE_NOT_AVAILABLE",
        kind="store",
        message=message,
        retryable=retryable,
    )


def value_of_item_row(row: dict[str, Any]) -> Any:
    """`<step>.rows[i]`: the item's value, or its failure."""
    if row["status"] == "error":
        return {"status": "error", "error": row.get("error")}
    return row.get("result")
