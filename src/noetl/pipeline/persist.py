"""Persist before report, in one place: a value becomes a payload in the store and an envelope that the control plane may carry.

Small payloads travel with the report that names them, when the store is a carrier. A put that fails is repeated; when it keeps
failing the task fails with REFERENCE_NOT_AVAILABLE, and its tool is not run again.
"""

import asyncio
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from msgspec import to_builtins
from msgspec.structs import replace

from noetl.faults import fault
from noetl.model.codec import encode
from noetl.model.commands import Command
from noetl.model.envelope import (
    CONTEXT_LIMIT,
    SELECTIONS,
    SELECTIONS_LIMIT,
    Envelope,
    Input,
    Meta,
    Selected,
    has_rows,
    is_scalar,
)
from noetl.model.errors import Failure, InvalidInput, Unavailable
from noetl.model.ids import RefId
from noetl.model.messages import StoredRef
from noetl.model.playbook_state import MAX_STATE_VALUE_BYTES, problem_with_value
from noetl.model.reference import (
    Address,
    Lifetime,
    ParentRef,
    Reference,
    address,
    member_label,
    result_key,
)
from noetl.model.secrets import stripped
from noetl.pipeline.data import RESERVED, ResultReader, as_stored, is_manifest
from noetl.pipeline.failures import Failing
from noetl.pipeline.patience import patiently
from noetl.pipeline.provenance import is_small
from noetl.playbook.assignments import (
    REFERENCE,
    is_reference,
    is_state,
    is_wrapped,
    link_to,
    wrapped,
)
from noetl.playbook.durations import micros
from noetl.playbook.model import Output
from noetl.results import records
from noetl.results.encoding import PARTS
from noetl.results.port import Carrier, ResultStore, Rider
from noetl.results.tables import EncodedTable, Parts, PartsManifest, Tables

SCALARS_INLINE = 1_024
COLUMNS_INLINE = 1_024
RESULTS_INLINE = 2_048
LITERAL_INLINE = 2_048  # bytes of a list or map of the playbook that an assignment carries
PER_REPORT = 256 * 1024  # bytes of payloads that ride in one report: many reports share an exchange


@dataclass(frozen=True, slots=True)
class StorageWish:
    """What the playbook's author says of a result: the tier it goes to, and how long it stays."""

    store: str | None = None
    lifetime: Lifetime | None = None

    @classmethod
    def of(cls, output: Output) -> "StorageWish":
        if output.scope is None and output.ttl is None:
            return cls(output.store)
        ttl = None if output.ttl is None else micros(output.ttl)
        return cls(output.store, Lifetime(output.scope or "execution", ttl))


ANYHOW = StorageWish()


class ResultWriter:
    """Puts of one command. `launch` counts how often this worker began this attempt: a second time must not meet its own keys.
    Nor does it carry payloads: an entry of the first launch may be recorded already, and theirs be passed over."""

    def __init__(
        self,
        command: Command,
        store: ResultStore,
        payloads: ResultReader,
        launch: int = 1,
        limit: int = CONTEXT_LIMIT,
    ) -> None:
        self._limit = limit
        self._checked: Envelope | None = None
        self._command = command
        # A loop item, and a child that got its input by reference, make their results from a payload.
        self._texts_in_context = command.kind == "run" and not command.scope.workload_by_reference
        self._store = store
        self._payloads = payloads
        self._suffix = "" if launch == 1 else f"-l{launch}"
        self._carrier = store if isinstance(store, Carrier) and launch == 1 else None
        self._refs: list[StoredRef] = []
        self._riders: list[Rider] = []  # their store reads them from memory while they are here

    def refs(self) -> tuple[StoredRef, ...]:
        """References made since the last report; it brings them. Nothing reads them again before it is recorded."""
        made, self._refs = tuple(self._refs), []
        self._riders = []
        return made

    async def put(
        self,
        label: str,
        value: Any,
        *,
        kind: str = "result",
        parent: RefId | None = None,
        wish: StorageWish = ANYHOW,
    ) -> Reference:
        command = self._command
        value = self._payloads.keychain.redactor.value(as_stored(value), payload=True)
        key = result_key(command.command_id, command.attempt, label) + self._suffix
        reference, rider = await self._put(
            address(command.execution_id, kind, command.step, key), value, wish.store
        )
        payload = None if rider is None else rider.payload
        inputs = () if kind == "input" else tuple(self._payloads.read)
        self._refs.append(
            StoredRef(
                reference=reference,
                parent=parent,
                inputs=inputs,
                payload=payload,
                lifetime=wish.lifetime,
            )
        )
        self._riders += [rider] if rider is not None else []
        fault("persist.after")
        return reference

    async def _store_or_carry(
        self, where: Address, value: Any, store: str | None
    ) -> tuple[Reference, Rider | None]:
        if self._carrier is None:
            return await self._store.put(where, value), None
        room = PER_REPORT - sum(len(rider.payload) for rider in self._riders)
        return await self._carrier.carry(where, value, room, store)

    async def _put(
        self, where: Address, value: Any, store: str | None
    ) -> tuple[Reference, Rider | None]:
        try:
            return await patiently(lambda: self._store_or_carry(where, value, store))
        except Unavailable as error:
            message = f"the result could not be stored: {error}"
            raise Failing(_not_stored(message, retryable=True), final=True) from error
        except (InvalidInput, TypeError, ValueError, OverflowError, RecursionError) as error:
            message = f"the result cannot be stored: {error}"
            raise Failing(_not_stored(message, retryable=False), final=True) from error

    async def result(
        self,
        label: str,
        value: Any,
        facts: dict[str, Any],
        *,
        parent: Envelope | None = None,
        meta: Meta | None = None,
        wish: StorageWish = ANYHOW,
        texts: bool = True,
    ) -> Envelope:
        """The value is durable when this returns. A null value needs no payload; records become columns when they fit. Without
        `texts`, the envelope has no texts of the value."""
        above = _made_from(parent)
        if (found := records.found(value)) is not None:
            value = await self._in_columns(value, found)
        try:
            reference = None if value is None else await self._put_all(label, value, above, wish)
        finally:
            for table in tables_in(value):
                table.close()
        return self.checked(
            Envelope(
                status="ok",
                reference=reference,
                parent_ref=ParentRef(above) if above is not None else None,
                context=context_of(value, facts, texts=texts and self._texts_in_context),
                meta=meta,
            )
        )

    async def input(self, label: str, given: dict[str, Any], *, inline: bool = True) -> Input:
        """What a task was given, to be kept beside its result; `inline`: a small one may stand in the envelope. Keys of secrets
        are left out there; a payload keeps them, as results do. What is a stored value, unchanged, is named instead."""
        given = self._payloads.keychain.redactor.value(
            {name: self._named(part) for name, part in given.items()}
        )
        if inline and is_small(given):
            return Input(value=stripped(given))
        return Input(ref=(await self.put(label, given, kind="input")).uri)

    def _named(self, part: Any) -> Any:
        reference = self._payloads.stored_as(part)
        return as_stored(part) if reference is None else {REFERENCE: to_builtins(reference)}

    async def _put_all(
        self, label: str, value: Any, above: RefId | None, wish: StorageWish
    ) -> Reference:
        """Rows in several files, and several sets of rows, are payloads of their own; the value says where they are."""
        if isinstance(value, Parts):
            parts = [
                await self.put(
                    f"{label}.p{number}",
                    table,
                    parent=above,
                    wish=StorageWish("disk", wish.lifetime),
                )
                for number, table in enumerate(value.tables)
            ]
            made = await self.put(
                label,
                to_builtins(PartsManifest(value.head, parts)),
                parent=above,
                wish=StorageWish(None, wish.lifetime),
            )
            return replace(made, format=PARTS, rows=value.rows, rows_at=value.head.at)
        if isinstance(value, dict) and any(tables_in(value)):
            linked = {
                name: {
                    REFERENCE: to_builtins(
                        await self._put_all(member_label(label, name), part, above, wish)
                    )
                }
                if isinstance(part, EncodedTable | Parts)
                else part
                for name, part in value.items()
            }
            return await self.put(label, linked, parent=above, wish=wish)
        return await self.put(label, value, parent=above, wish=wish)

    async def _in_columns(self, value: Any, found: records.Records) -> Any:
        tables = Tables(self._store.staging, self._payloads.keychain.redactor.batch)
        try:
            return await self._store.patiently(
                lambda: asyncio.to_thread(records.as_table, value, found, tables)
            )
        except Unavailable as error:
            raise Failing(
                _not_stored(f"the result could not be stored: {error}", retryable=True), final=True
            ) from error

    def checked(self, envelope: Envelope) -> Envelope:
        """Small enough; a cut context would change routing silently, so a larger one is an error. The envelope that passed last
        is not looked at again."""
        if envelope is self._checked:
            return envelope
        try:
            size = len(encode(envelope))
        except (TypeError, ValueError) as error:
            message = f"the facts of the result are not JSON: {error}"
            raise Failing(
                Failure(code="RESULT_NOT_JSON", kind="tool", message=message), final=True
            ) from error
        if nested := [name for name, value in envelope.context.items() if has_rows(name, value)]:
            message = f"the facts of the result hold a list or map under {nested[0]!r}; a tool gives scalars, or maps of them"
            raise Failing(
                Failure(code="CONTEXT_HAS_ROWS", kind="result", message=message), final=True
            )
        if size > self._limit:
            largest = max(
                envelope.context,
                key=lambda name: len(encode(envelope.context[name])),
                default="meta",
            )
            message = f"the result's context takes {size} bytes, the limit is {self._limit}; the largest part is {largest!r}"
            raise Failing(
                Failure(code="CONTEXT_TOO_LARGE", kind="result", message=message), final=True
            )
        self._checked = envelope
        return envelope

    async def selections(
        self,
        label: str,
        found: dict[str, Selected],
        state: Collection[str] = (),
        stored_texts: Collection[str] = (),
    ) -> dict[str, Any]:
        """Scalars, the smallest first, while they fit together; every other value by reference, and so are texts of
        `stored_texts`. Those for `state` as they are, if it may hold them."""
        sizes = sorted((len(encode(selected)), name) for name, selected in found.items())
        kept: dict[str, Any] = {}
        left = SELECTIONS_LIMIT
        for number, (size, name) in enumerate(sizes):
            selected = found[name]
            if name in state and (value := await self._for_state(selected)) is not None:
                kept[name] = to_builtins(value)
                continue
            is_value = (
                selected.stored is None and selected.error is None and selected.missing is None
            )
            is_stored_text = name in stored_texts and isinstance(selected.value, str)
            if is_value and (is_stored_text or not is_scalar(selected.value) or size > left):
                selected = Selected(
                    stored=await self._stored_as(f"{label}.s{number}", selected.value)
                )
            elif is_value:
                left -= size
            kept[name] = to_builtins(selected)
        return kept

    async def _for_state(self, selected: Selected) -> Selected | None:
        """The value itself; None when state cannot hold it."""
        if selected.error is not None or selected.missing is not None:
            return None
        value = selected.value
        if selected.stored is not None:
            if (selected.stored.bytes or 0) > MAX_STATE_VALUE_BYTES:
                return None
            value = await self._payloads.resolve(selected.stored)
        return Selected(value=value) if problem_with_value("", value) is None else None

    async def assigned(
        self, label: str, values: dict[str, Any], literal: Collection[str] = ()
    ) -> dict[str, Any]:
        """What `set` changes, as events carry it: scalars and what the playbook itself says (`literal`) as they are, every
        other value by reference, and so are texts that an item keeps for itself (`iter.…`)."""
        kept: dict[str, Any] = {}
        for number, (name, value) in enumerate(values.items()):
            if is_state(name):
                kept[name] = value
            elif name in literal and len(encode(value)) <= LITERAL_INLINE:
                kept[name] = wrapped(value)
            else:
                of_item = self._command.kind != "run" and name.startswith("iter.")
                kept[name] = await self.link(f"{label}.v{number}", value, texts=not of_item)
        return kept

    async def link(self, label: str, value: Any, *, texts: bool = True) -> Any:
        """The value when it is a scalar, otherwise a link to it. Without `texts`, a text is linked too."""
        is_value = is_scalar(value) and (texts or not isinstance(value, str))
        return value if is_value else link_to(await self._stored_as(label, value))

    async def cursor(self, label: str, cursor: dict[str, Any]) -> dict[str, Any]:
        """Where the next page begins, as an event carries it: its maps are written out, their lists and long texts linked."""
        kept: dict[str, Any] = {}
        for number, (name, part) in enumerate(cursor.items()):
            place = f"{label}.c{number}"
            is_plain_map = (
                isinstance(part, dict) and not is_reference(part) and not is_wrapped(part)
            )
            kept[name] = await (
                self.cursor(place, part) if is_plain_map else self.link(place, part)
            )
        return kept

    async def _stored_as(self, label: str, value: Any) -> Reference:
        """The payload that this very value is already, or a new one."""
        return self._payloads.reference_of(value) or await self.put(label, value)

    async def results(self, label: str, envelopes: dict[str, Envelope]) -> dict[str, Any]:
        """`<step>.results`: where the values of a pipeline's tasks are."""
        if len(envelopes) < 2:
            return {}
        made = {
            task: None if e.reference is None else to_builtins(e.reference)
            for task, e in envelopes.items()
        }
        if len(encode(made)) > RESULTS_INLINE:
            made = {REFERENCE: to_builtins(await self.put(f"{label}.tasks", made))}
        return {"results": made}


def _made_from(parent: Envelope | None) -> RefId | None:
    """A loop's manifest is no payload: what is read of it says which of its parts were used."""
    reference = parent.reference if parent is not None else None
    return None if reference is None or is_manifest(reference) else reference.ref_id


def tables_in(value: Any) -> list[EncodedTable | Parts]:
    """Rows that come in files, as the value or as members of it."""
    found = value.values() if isinstance(value, dict) else (value,)
    return [part for part in found if isinstance(part, EncodedTable | Parts)]


def _not_stored(message: str, *, retryable: bool) -> Failure:
    return Failure(
        code="REFERENCE_NOT_AVAILABLE", kind="store", message=message[:1_000], retryable=retryable
    )


def with_context(
    envelope: Envelope, selections: dict[str, Any], results: dict[str, Any]
) -> dict[str, Any]:
    context = {**envelope.context, **results}
    return {**context, SELECTIONS: selections} if selections else context


def context_of(value: Any, facts: dict[str, Any], *, texts: bool = True) -> dict[str, Any]:
    """What arcs and people may know of a value without opening it; keys of secrets are left out, and texts on demand."""
    context = dict(facts)
    if isinstance(value, EncodedTable | Parts):
        context |= _of_table(value, texts)
    elif isinstance(value, list):
        context |= _rows(value, None)
    elif isinstance(value, dict):
        if isinstance(value.get("rows"), list):
            context |= _rows(value["rows"], value.get("columns")) | _own_count(value)
        context |= _scalars(value, texts)
    cleaned: dict[str, Any] = stripped(context)
    return cleaned


def _of_table(table: EncodedTable | Parts, texts: bool) -> dict[str, Any]:
    at = table.head.at
    rest = {name: part for name, part in table.head.rest.items() if name != at}
    known = _counted(table.rows, rest.get("columns"), table.columns) if at in (None, "rows") else {}
    return known | _own_count(rest) | _scalars(rest, texts)


def _own_count(value: dict[str, Any]) -> dict[str, Any]:
    """A statement that changes rows and gives none counts them."""
    return {"row_count": counted} if isinstance(counted := value.get("row_count"), int) else {}


def _rows(rows: list[Any], columns: Any) -> dict[str, Any]:
    return _counted(
        len(rows), columns, list(rows[0]) if rows and isinstance(rows[0], dict) else None
    )


def _counted(count: int, columns: Any, found: list[str] | None) -> dict[str, Any]:
    """`columns` are those that the value itself names."""
    names = columns if isinstance(columns, list) else found
    known: dict[str, Any] = {"row_count": count}
    return (
        known
        if names is None or len(encode(names)) > COLUMNS_INLINE
        else {**known, "columns": names}
    )


def _scalars(value: dict[str, Any], texts: bool) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    left = SCALARS_INLINE
    for name, part in value.items():
        if name in RESERVED or not is_scalar(part):
            continue
        if isinstance(part, str) and not texts:
            continue
        size = len(encode(part)) + len(name) + 4
        if size <= left:
            kept[name] = part
            left -= size
    return kept
