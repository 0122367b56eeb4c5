"""Results as templates see them: by reference until a part is used.

`Payloads` is what this command has read or made so far. A `Stored` value asks it for parts; what is not there raises `NeedsData`,
the renderer loads it and evaluates again. Rows are read by range, so one item of a million costs one item.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from noetl.model.decisions import AddPart
from noetl.model.envelope import SELECTIONS, Envelope
from noetl.model.errors import CorruptLog, Failure, InvalidInput, Unavailable
from noetl.model.ids import RefId
from noetl.model.reference import Reference
from noetl.pipeline.environment import Manifests
from noetl.pipeline.failures import Failing
from noetl.pipeline.keychain import Entry, Handle, Keychain
from noetl.playbook.assignments import REFERENCE
from noetl.playbook.expressions import FailedError, NeedsData, item, kind_of, member
from noetl.results.port import ResultStore
from noetl.tools.secrets import HANDLE

MANIFEST = "manifest"
FACTS = ("http", "pg", "py")
# Keys of an envelope's context with a meaning of their own; every other key is a scalar of the payload's top level.
RESERVED: Final = frozenset({*FACTS, SELECTIONS, "row_count", "columns", "results", "stats", "value"})
MISSING: Final = object()
TRIES = 5


@dataclass(frozen=True, slots=True)
class Whole:
    reference: Reference


@dataclass(frozen=True, slots=True)
class Rows:
    reference: Reference
    start: int
    stop: int


def by_uri(uri: str) -> Reference:
    """A reference of which only the address is known; its checksum is not checked."""
    return Reference(ref_id=RefId(""), type="kv", uri=uri)


def is_manifest(reference: Reference) -> bool:
    return reference.format == MANIFEST


class Payloads:
    def __init__(self, store: ResultStore, manifests: Manifests, keychain: Keychain | None = None) -> None:
        self.keychain = keychain or Keychain()
        self._store = store
        self._manifests = manifests
        self._whole: dict[str, Any] = {}
        self._rows: dict[tuple[str, int, int], list[Any]] = {}
        self.read: dict[RefId, None] = {}  # what results of this command were made from, in order of use

    def whole(self, reference: Reference) -> Any:
        found = self._whole.get(reference.uri, MISSING)
        if found is MISSING:
            raise NeedsData(Whole(reference))
        return found

    def has(self, reference: Reference) -> bool:
        return reference.uri in self._whole

    def rows(self, reference: Reference, start: int, stop: int) -> list[Any]:
        if reference.uri in self._whole:
            rows: list[Any] = self._whole[reference.uri][start:stop]
            return rows
        found = self._rows.get((reference.uri, start, stop))
        if found is None:
            raise NeedsData(Rows(reference, start, stop))
        return found

    def keep(self, reference: Reference, value: Any) -> None:
        self._whole[reference.uri] = value

    def forget(self, reference: Reference) -> None:
        """No name stands for it any more; should one, it is read again."""
        self._whole.pop(reference.uri, None)

    async def load(self, request: object) -> None:
        match request:
            case Whole(reference):
                self._whole[reference.uri] = await self.resolve(reference)
            case Rows(reference, start, stop):
                self._rows[reference.uri, start, stop] = await self.range(reference, start, stop)
            case Entry() | Handle():
                await self.keychain.load(request)
            case _:
                raise TypeError(f"cannot load {request!r}")

    async def resolve(self, reference: Reference) -> Any:
        if is_manifest(reference):
            return await self.range(reference, 0, await self.size(reference))
        self._note(reference)
        return await _patiently(reference.uri, lambda: self._store.resolve(reference))

    async def range(self, reference: Reference, start: int, stop: int) -> list[Any]:
        """Items [start, stop); of a loop's result, one value per item."""
        if not is_manifest(reference):
            self._note(reference)
            return list(await _patiently(reference.uri, lambda: self._store.rows(reference, start, stop)))
        rows = await self.item_rows(reference)
        return [item_value(rows[index]) if index in rows else None for index in range(start, stop)]

    async def item_rows(self, reference: Reference) -> dict[int, dict[str, Any]]:
        """Rows (index, status, error, ms, tries, result) of a loop's items that ran, by index. A loop that was retried begins
        with the manifest of the run before it; items that ran again stand over theirs."""
        found: dict[int, dict[str, Any]] = {}
        for part in await self._parts(reference):
            if is_manifest(part.reference):
                found |= await self.item_rows(part.reference)
                continue
            if not self.has(part.reference):
                self._whole[part.reference.uri] = await self.resolve(part.reference)
            found |= {row["index"]: row for row in self._whole[part.reference.uri]}
        return found

    async def size(self, reference: Reference) -> int:
        if reference.rows is not None:
            return reference.rows
        if is_manifest(reference):
            return sum(part.count for part in await self._parts(reference))
        return len(await self.resolve(reference))

    async def _parts(self, reference: Reference) -> list[AddPart]:
        return await self.parts(reference.uri.rpartition("/")[2])

    async def parts(self, manifest: str) -> list[AddPart]:
        """Of a loop's result, or of the pages of a call."""
        return list(await _patiently(manifest, lambda: self._manifests(manifest)))

    def _note(self, reference: Reference) -> None:
        if reference.ref_id:
            self.read[reference.ref_id] = None


async def _patiently(what: str, ask: Callable[[], Awaitable[Any]]) -> Any:
    """A store that is unavailable is asked again for a while; then the task fails, retryable."""
    for number in range(TRIES):
        try:
            return await ask()
        except Unavailable as error:
            if number + 1 == TRIES:
                raise Failing(_unreadable(what, str(error), retryable=True)) from error
            await asyncio.sleep(0.05 * 2**number)
        except (InvalidInput, CorruptLog) as error:
            raise Failing(_unreadable(what, str(error), retryable=False)) from error
    raise AssertionError("the last try returns or raises")


def _unreadable(what: str, why: str, *, retryable: bool) -> Failure:
    message = f"{what} cannot be read: {why}"
    return Failure(code="REFERENCE_NOT_AVAILABLE", kind="store", message=message, retryable=retryable)


def item_value(row: dict[str, Any]) -> Any:
    """`<step>.rows[i]`: the item's value, or its failure."""
    return {"status": "error", "error": row.get("error")} if row["status"] == "error" else row.get("result")


class Stored:
    """A Lazy over one result. Its own keys win over the facts of its envelope (`rows`, `row_count`, `ref`, `status` …)."""

    def __init__(self, envelope: Envelope, payloads: Payloads, value: Any = MISSING) -> None:
        self.envelope = envelope
        self._payloads = payloads
        self._value = value if envelope.reference is None else MISSING
        if envelope.reference is not None and value is not MISSING:
            payloads.keep(envelope.reference, value)
        if envelope.reference is None and value is MISSING:
            self._value = envelope.context.get("value")

    def member(self, name: str) -> Any:
        context = self.envelope.context
        if self.rows_known is None:
            if name in context and name not in RESERVED and not self._here:
                return context[name]
            value = self.plain()
            if isinstance(value, dict) and name in value:
                return value[name]
            if name == "value" and isinstance(value, dict) and HANDLE in value:
                return self._payloads.keychain.secret(value[HANDLE], value.get("provider"))
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
                return self.length() if self._is_list() else envelope.context["row_count"]
            case "results":
                return {task: self._task(found) for task, found in self._tasks().items()}
            case "ref" | "status" | "error" | "context" | "meta":
                return view(envelope)[name]
            case "http" | "pg" | "py" | "columns" | "stats":
                return envelope.context[name]
            case _:
                raise LookupError(name)

    def _tasks(self) -> dict[str, Any]:
        listed: dict[str, Any] = self.envelope.context["results"]
        if REFERENCE in listed:  # too many for the context
            listed = self._payloads.whole(msgspec.convert(listed[REFERENCE], Reference))
        return listed

    def _task(self, found: Any) -> Any:
        if found is None:
            return None
        return Stored(Envelope(status="ok", reference=msgspec.convert(found, Reference)), self._payloads)

    def item(self, index: int | slice) -> Any:
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
        if self.rows_known is not None:
            return self.rows_known
        value = self.plain()
        if isinstance(value, list | dict | str):
            return len(value)
        raise FailedError(f"{kind_of(value)} has no length")

    def plain(self) -> Any:
        reference = self.envelope.reference
        return self._value if reference is None else self._payloads.whole(reference)

    @property
    def rows_known(self) -> int | None:
        """How many rows, when the payload is known to be a list."""
        reference = self.envelope.reference
        if reference is None or self._here:
            return None
        if reference.rows is None and is_manifest(reference):
            return self.envelope.context.get("row_count")
        return reference.rows

    @property
    def _here(self) -> bool:
        reference = self.envelope.reference
        return reference is None or self._payloads.has(reference)

    def _is_list(self) -> bool:
        return self.rows_known is not None or isinstance(self.plain(), list)


class Answer:
    """The value of an HTTP call: what it lacks itself is looked for in its `data`."""

    def __init__(self, inner: Stored) -> None:
        self.inner = inner

    def member(self, name: str) -> Any:
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


def answer(stored: Stored) -> Stored | Answer:
    return Answer(stored) if "http" in stored.envelope.context else stored


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


def held(value: Any, payloads: Payloads) -> Any:
    """A ctx value with every `{"$reference": uri}` in it made a Lazy."""
    if not isinstance(value, dict):
        return value
    if len(value) == 1 and isinstance(uri := value.get(REFERENCE), str):
        return Stored(Envelope(status="ok", reference=by_uri(uri)), payloads)
    return {name: held(part, payloads) for name, part in value.items()}
