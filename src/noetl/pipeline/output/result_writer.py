"""Stores values before they are reported: a value becomes a payload in the store, and an envelope
that the control plane may carry.

Small payloads travel with the report that names them, if the store can carry them. A failed put is
retried. If it keeps failing, the task fails with REFERENCE_NOT_AVAILABLE, and its tool does not run
again.
"""

import asyncio
from collections.abc import Collection
from typing import Any

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from noetl.faults import hit_fault_point
from noetl.model.codec import encode
from noetl.model.commands import Command
from noetl.model.envelope import (
    MAX_CONTEXT_BYTES,
    MAX_SELECTIONS_BYTES,
    SELECTIONS_KEY,
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
from noetl.model.playbook_state import MAX_STATE_VALUE_BYTES, find_value_problem
from noetl.model.reference import (
    Address,
    Lifetime,
    ParentRef,
    Reference,
    make_address,
    make_member_label,
    make_result_key,
)
from noetl.model.secrets import strip_secrets
from noetl.pipeline.failures import TaskFailed
from noetl.pipeline.output.provenance import is_small_input
from noetl.pipeline.retries import retry_while_unavailable
from noetl.pipeline.scope.http_values import remove_body
from noetl.pipeline.scope.lazy_results import RESERVED
from noetl.pipeline.scope.results import ResultReader, is_manifest
from noetl.pipeline.scope.shared_rows import StoredInput
from noetl.playbook.assignments import (
    LINK_KEY,
    is_reference,
    is_state,
    is_wrapped,
    make_link,
    wrap_links,
)
from noetl.playbook.durations import parse_micros
from noetl.playbook.model import Output
from noetl.results.formats import records
from noetl.results.formats.encoding import PARTS
from noetl.results.formats.tables import EncodedTable, PartsManifest, TableOptions, TableParts
from noetl.results.port import Carrier, ResultStore, Rider

MAX_INLINE_SCALAR_BYTES = 1_024  # bytes of a value's scalars in its envelope
TABLE_TYPES = (EncodedTable, TableParts)
MAX_INLINE_COLUMN_BYTES = 1_024  # bytes of the names of columns in an envelope
MAX_INLINE_TASK_REFERENCE_BYTES = (
    2_048  # bytes of the references of a pipeline's tasks in an envelope
)
MAX_INLINE_LITERAL_BYTES = (
    2_048  # bytes of a list or map of the playbook that an assignment carries
)
MAX_REPORT_PAYLOAD_BYTES = (
    256 * 1024
)  # bytes of payloads that one report carries; reports share an exchange


class StorageWish(Struct, frozen=True):
    """What the playbook's author says about a result: its tier, and how long it stays."""

    store: str | None = None
    lifetime: Lifetime | None = None

    @classmethod
    def from_output(cls, output: Output) -> "StorageWish":
        if output.scope is None and output.ttl is None:
            return cls(output.store)
        ttl = None if output.ttl is None else parse_micros(output.ttl)
        return cls(output.store, Lifetime(output.scope or "execution", ttl))


NO_WISH = StorageWish()


class ResultWriter:
    """Stores the values of one command.

    `launch` counts how often this worker started this attempt. A second launch uses other keys, so
    it does not collide with the first. It also carries no payloads with reports: if a report of the
    first launch is recorded already, the server ignores the payloads of the second.
    """

    def __init__(
        self,
        command: Command,
        store: ResultStore,
        payloads: ResultReader,
        launch: int = 1,
        limit: int = MAX_CONTEXT_BYTES,
    ) -> None:
        self._limit = limit
        self._checked: Envelope | None = None
        self._command = command
        # A loop item, and a child that got its input by reference, make their results from a
        # payload.
        self._texts_in_context = command.kind == "run" and not command.scope.workload_by_reference
        self._store = store
        self._payloads = payloads
        self._suffix = "" if launch == 1 else f"-l{launch}"
        self._carrier: Carrier | None = None
        if launch == 1 and isinstance(store, Carrier):
            self._carrier = store
        self._refs: list[StoredRef] = []
        # While a rider is here, its store reads the payload from memory.
        self._riders: list[Rider] = []

    def take_references(self) -> tuple[StoredRef, ...]:
        """The references made since the last report, for the next one.

        Nothing reads their payloads before that report is recorded.
        """
        refs, self._refs = tuple(self._refs), []
        self._riders = []
        return refs

    async def put_value(
        self,
        label: str,
        value: Any,
        *,
        kind: str = "result",
        parent: RefId | None = None,
        wish: StorageWish = NO_WISH,
    ) -> Reference:
        """Store a value without its secrets. The next report brings the reference."""
        command = self._command
        value = self._payloads.keychain.redactor.redact_value(remove_body(value), payload=True)
        key = make_result_key(command.command_id, command.attempt, label) + self._suffix
        where = make_address(command.execution_id, kind, command.step, key)
        reference, rider = await self._put_with_retries(where, value, wish.store)
        payload = None
        if rider is not None:
            payload = rider.payload
            self._riders.append(rider)
        inputs: tuple[RefId, ...] = ()
        if kind != "input":
            inputs = tuple(self._payloads.inputs_read)
        stored = StoredRef(
            reference=reference,
            parent=parent,
            inputs=inputs,
            payload=payload,
            lifetime=wish.lifetime,
        )
        self._refs.append(stored)
        hit_fault_point("persist.after")
        return reference

    async def _store_or_carry(
        self, where: Address, value: Any, store: str | None
    ) -> tuple[Reference, Rider | None]:
        """Store the value, or let the report carry it if there is room."""
        if self._carrier is None:
            return await self._store.put(where, value), None
        room = MAX_REPORT_PAYLOAD_BYTES - sum(len(rider.payload) for rider in self._riders)
        return await self._carrier.carry(where, value, room, store)

    async def _put_with_retries(
        self, where: Address, value: Any, store: str | None
    ) -> tuple[Reference, Rider | None]:
        try:
            return await retry_while_unavailable(lambda: self._store_or_carry(where, value, store))
        except Unavailable as error:
            message = f"the result could not be stored: {error}"
            raise TaskFailed(_storage_failure(message, retryable=True), final=True) from error
        except (InvalidInput, TypeError, ValueError, OverflowError, RecursionError) as error:
            message = f"the result cannot be stored: {error}"
            raise TaskFailed(_storage_failure(message, retryable=False), final=True) from error

    async def put_result(
        self,
        label: str,
        value: Any,
        facts: dict[str, Any],
        *,
        parent: Envelope | None = None,
        meta: Meta | None = None,
        wish: StorageWish = NO_WISH,
        texts: bool = True,
    ) -> Envelope:
        """Store a result and return its envelope. The value is durable when this returns.

        A null value needs no payload. Records are stored as columns if they fit. Without `texts`,
        the envelope has no texts of the value.
        """
        above = _parent_payload(parent)
        value = await self._encode_records(value)
        reference = None
        try:
            if value is not None:
                reference = await self._put_with_tables(label, value, above, wish)
        finally:
            for table in find_tables(value):
                table.close()
        envelope = Envelope(
            status="ok",
            reference=reference,
            parent_ref=None if above is None else ParentRef(above),
            context=make_context(value, facts, texts=texts and self._texts_in_context),
            meta=meta,
        )
        return self.check_envelope(envelope)

    async def put_input(
        self,
        label: str,
        task_input: dict[str, Any],
        *,
        inline: bool = True,
    ) -> Input:
        """The input of a task, to be recorded beside its result.

        With `inline`, a small input stands in the envelope, without keys of secrets. Otherwise it
        is a payload, which keeps such keys, as results do. A part that is a stored value is
        replaced by its reference.
        """
        task_input = {name: self._name_stored_part(part) for name, part in task_input.items()}
        task_input = self._payloads.keychain.redactor.redact_value(task_input)
        if inline and is_small_input(task_input):
            return Input(value=strip_secrets(task_input))
        reference = await self.put_value(label, task_input, kind="input")
        return Input(ref=reference.uri)

    def _name_stored_part(self, part: Any) -> Any:
        if isinstance(part, StoredInput):
            return {LINK_KEY: to_builtins(part.reference)}
        reference = self._payloads.find_large_payload(part)
        if reference is None:
            return remove_body(part)
        return {LINK_KEY: to_builtins(reference)}

    async def _put_with_tables(
        self,
        label: str,
        value: Any,
        above: RefId | None,
        wish: StorageWish,
    ) -> Reference:
        """Store a value.

        Rows in several files, and several sets of rows, become payloads of their own that the value
        names.
        """
        if isinstance(value, TableParts):
            return await self._put_parts(label, value, above, wish)
        if not isinstance(value, dict) or not any(find_tables(value)):
            return await self.put_value(label, value, parent=above, wish=wish)
        linked: dict[str, Any] = {}
        for name, part in value.items():
            if isinstance(part, EncodedTable | TableParts):
                reference = await self._put_with_tables(
                    make_member_label(label, name), part, above, wish
                )
                linked[name] = {LINK_KEY: to_builtins(reference)}
            else:
                linked[name] = part
        return await self.put_value(label, linked, parent=above, wish=wish)

    async def _put_parts(
        self,
        label: str,
        value: TableParts,
        above: RefId | None,
        wish: StorageWish,
    ) -> Reference:
        """Store rows in several files, and a manifest that lists the files."""
        on_disk = StorageWish("disk", wish.lifetime)
        parts: list[Reference] = []
        for number, table in enumerate(value.tables):
            parts.append(
                await self.put_value(f"{label}.p{number}", table, parent=above, wish=on_disk)
            )
        manifest = to_builtins(PartsManifest(value.head, parts))
        anywhere = StorageWish(None, wish.lifetime)
        reference = await self.put_value(label, manifest, parent=above, wish=anywhere)
        return replace(
            reference,
            format=PARTS,
            rows=value.rows,
            rows_at=value.head.at,
        )

    async def _encode_records(self, value: Any) -> Any:
        """The value, with its records encoded as columns if it has some that fit."""
        tables = TableOptions(self._store.staging, self._payloads.keychain.redactor.redact_rows)
        encode_columns = records.find_encoding(value, tables)
        if encode_columns is None:
            return value
        try:
            return await self._store.retry_unavailable(lambda: asyncio.to_thread(encode_columns))
        except Unavailable as error:
            message = f"the result could not be stored: {error}"
            raise TaskFailed(_storage_failure(message, retryable=True), final=True) from error

    def check_envelope(self, envelope: Envelope) -> Envelope:
        """The envelope, if it is small enough for an event.

        A larger one is an error, because cutting the context would silently change the routing. The
        envelope that passed last is not checked again.
        """
        if envelope is self._checked:
            return envelope
        try:
            size = len(encode(envelope))
        except (TypeError, ValueError) as error:
            message = f"the facts of the result are not JSON: {error}"
            failure = Failure(code="RESULT_NOT_JSON", kind="tool", message=message)
            raise TaskFailed(failure, final=True) from error
        context = envelope.context
        for name, value in context.items():
            if has_rows(name, value):
                message = f"the facts of the result hold a list or map under {name!r}; a tool gives scalars, or maps of them"
                failure = Failure(code="CONTEXT_HAS_ROWS", kind="result", message=message)
                raise TaskFailed(failure, final=True)
        if size > self._limit:
            largest = max(context, key=lambda name: len(encode(context[name])), default="meta")
            message = f"the result's context takes {size} bytes, the limit is {self._limit}; the largest part is {largest!r}"
            failure = Failure(code="CONTEXT_TOO_LARGE", kind="result", message=message)
            raise TaskFailed(failure, final=True)
        self._checked = envelope
        return envelope

    async def carry_selections(
        self,
        label: str,
        selected_values: dict[str, Selected],
        state: Collection[str] = (),
        stored_texts: Collection[str] = (),
    ) -> dict[str, Any]:
        """Selections as events carry them.

        Scalars stand there as they are, the smallest first, while they fit together. Every other
        value, and texts of `stored_texts`, go by reference. Values for `state` stand there if it
        may hold them.
        """
        sizes = [(len(encode(selected)), name) for name, selected in selected_values.items()]
        sizes.sort()
        carried: dict[str, Any] = {}
        left = MAX_SELECTIONS_BYTES
        for number, (size, name) in enumerate(sizes):
            selected = selected_values[name]
            if name in state:
                for_state = await self._select_for_state(selected)
                if for_state is not None:
                    carried[name] = to_builtins(for_state)
                    continue
            value = selected.value
            if selected.stored is None and selected.error is None and selected.missing is None:
                is_stored_text = name in stored_texts and isinstance(value, str)
                if is_stored_text or not is_scalar(value) or size > left:
                    selected = Selected(stored=await self._find_or_put(f"{label}.s{number}", value))
                else:
                    left -= size
            carried[name] = to_builtins(selected)
        return carried

    async def _select_for_state(self, selected: Selected) -> Selected | None:
        """The value itself; None if state cannot hold it."""
        if selected.error is not None or selected.missing is not None:
            return None
        value = selected.value
        if selected.stored is not None:
            if (selected.stored.bytes or 0) > MAX_STATE_VALUE_BYTES:
                return None
            value = await self._payloads.resolve(selected.stored)
        if find_value_problem("", value) is not None:
            return None
        return Selected(value=value)

    async def carry_assignments(
        self,
        label: str,
        values: dict[str, Any],
        literal: Collection[str] = (),
    ) -> dict[str, Any]:
        """The assignments of `set` as events carry them.

        Scalars, and values that stand in the playbook (`literal`), are carried as they are. Every
        other value, and a text that an item assigns to `iter.…`, goes by reference.
        """
        carried: dict[str, Any] = {}
        for number, (name, value) in enumerate(values.items()):
            if is_state(name):
                carried[name] = value
            elif name in literal and len(encode(value)) <= MAX_INLINE_LITERAL_BYTES:
                carried[name] = wrap_links(value)
            else:
                of_item = self._command.kind != "run" and name.startswith("iter.")
                carried[name] = await self.link_value(
                    f"{label}.v{number}", value, texts=not of_item
                )
        return carried

    async def link_value(
        self,
        label: str,
        value: Any,
        *,
        texts: bool = True,
    ) -> Any:
        """The value if it is a scalar, otherwise a link to it.

        Without `texts`, a text is linked too.
        """
        if is_scalar(value) and (texts or not isinstance(value, str)):
            return value
        return make_link(await self._find_or_put(label, value))

    async def carry_cursor(self, label: str, cursor: dict[str, Any]) -> dict[str, Any]:
        """The cursor of the next page as an event carries it: maps stay maps, and their lists and
        long texts are linked."""
        carried: dict[str, Any] = {}
        for number, (name, part) in enumerate(cursor.items()):
            place = f"{label}.c{number}"
            if isinstance(part, dict) and not is_reference(part) and not is_wrapped(part):
                carried[name] = await self.carry_cursor(place, part)
            else:
                carried[name] = await self.link_value(place, part)
        return carried

    async def _find_or_put(self, label: str, value: Any) -> Reference:
        """The payload that this very object was read from or stored as, or a new one."""
        return self._payloads.find_payload(value) or await self.put_value(label, value)

    async def carry_task_references(
        self, label: str, envelopes: dict[str, Envelope]
    ) -> dict[str, Any]:
        """`<step>.results`: the references of the values of a pipeline's tasks."""
        if len(envelopes) < 2:
            return {}
        references: dict[str, Any] = {}
        for task, envelope in envelopes.items():
            references[task] = None
            if envelope.reference is not None:
                references[task] = to_builtins(envelope.reference)
        if len(encode(references)) > MAX_INLINE_TASK_REFERENCE_BYTES:
            stored = await self.put_value(f"{label}.tasks", references)
            references = {LINK_KEY: to_builtins(stored)}
        return {"results": references}


def _parent_payload(parent: Envelope | None) -> RefId | None:
    """The payload of the parent.

    A loop's manifest is none: the parts that are read are recorded instead.
    """
    if parent is None or parent.reference is None or is_manifest(parent.reference):
        return None
    return parent.reference.ref_id


def find_tables(value: Any) -> list[EncodedTable | TableParts]:
    """Rows that are encoded in files: the value, or members of it."""
    members = value.values() if isinstance(value, dict) else (value,)
    return [part for part in members if isinstance(part, TABLE_TYPES)]


def _storage_failure(message: str, *, retryable: bool) -> Failure:
    return Failure(
        code="REFERENCE_NOT_AVAILABLE",
        kind="store",
        message=message[:1_000],
        retryable=retryable,
    )


def add_selections(
    envelope: Envelope, selections: dict[str, Any], results: dict[str, Any]
) -> dict[str, Any]:
    context = {**envelope.context, **results}
    if selections:
        context[SELECTIONS_KEY] = selections
    return context


def make_context(
    value: Any,
    facts: dict[str, Any],
    *,
    texts: bool = True,
) -> dict[str, Any]:
    """What arcs and people may know about a value without opening it.

    Keys of secrets are left out, and texts too unless `texts` is set.
    """
    context = dict(facts)
    if isinstance(value, EncodedTable | TableParts):
        context |= _table_context(value, texts)
    elif isinstance(value, list):
        context |= _rows_context(value, None)
    elif isinstance(value, dict):
        if isinstance(value.get("rows"), list):
            context |= _rows_context(value["rows"], value.get("columns")) | _find_own_count(value)
        context |= _pick_scalars(value, texts)
    cleaned: dict[str, Any] = strip_secrets(context)
    return cleaned


def _table_context(table: EncodedTable | TableParts, texts: bool) -> dict[str, Any]:
    at = table.head.at
    rest = {name: part for name, part in table.head.rest.items() if name != at}
    counts: dict[str, Any] = {}
    if at in (None, "rows"):
        counts = _count_context(table.rows, rest.get("columns"), table.columns)
    return counts | _find_own_count(rest) | _pick_scalars(rest, texts)


def _find_own_count(value: dict[str, Any]) -> dict[str, Any]:
    """The count that the value itself has: a statement that changes rows and returns none counts
    them."""
    count = value.get("row_count")
    if isinstance(count, int):
        return {"row_count": count}
    return {}


def _rows_context(rows: list[Any], columns: Any) -> dict[str, Any]:
    row_keys = None
    if rows and isinstance(rows[0], dict):
        row_keys = list(rows[0])
    return _count_context(len(rows), columns, row_keys)


def _count_context(
    count: int,
    columns: Any,
    row_keys: list[str] | None,
) -> dict[str, Any]:
    """The number of rows and their columns. `columns` are those that the value itself names."""
    names = columns if isinstance(columns, list) else row_keys
    if names is None or len(encode(names)) > MAX_INLINE_COLUMN_BYTES:
        return {"row_count": count}
    return {"row_count": count, "columns": names}


def _pick_scalars(value: dict[str, Any], texts: bool) -> dict[str, Any]:
    """The scalars of a map that fit into an envelope."""
    scalars: dict[str, Any] = {}
    left = MAX_INLINE_SCALAR_BYTES
    for name, part in value.items():
        if name in RESERVED or not is_scalar(part):
            continue
        if isinstance(part, str) and not texts:
            continue
        size = len(encode(part)) + len(name) + 4
        if size <= left:
            scalars[name] = part
            left -= size
    return scalars
