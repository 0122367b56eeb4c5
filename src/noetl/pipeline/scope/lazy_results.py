"""Results as templates see them: by reference until a part is used."""

from typing import Any, Final

import msgspec
from msgspec.structs import replace

from noetl.model.envelope import NO_VALUE_KEY, SELECTIONS_KEY, Envelope
from noetl.model.reference import Reference, is_member_uri
from noetl.pipeline.scope.http_values import add_body
from noetl.pipeline.scope.results import MISSING, ResultReader, is_manifest
from noetl.playbook.assignments import LINK_KEY, is_reference, replace_links
from noetl.template.errors import FailedError
from noetl.template.members import get_item, get_member
from noetl.template.scopes import TOOL_FACTS, build_output_facts
from noetl.template.values import NO_ERROR, Undefined, kind_of, make_failed_value
from noetl.tools.secrets import HANDLE_KEY

# Keys of an envelope's context with a meaning of their own; every other key is a scalar of the
# payload's top level.
RESERVED: Final = frozenset(
    {*TOOL_FACTS, SELECTIONS_KEY, "row_count", "columns", "results", "stats", "value", NO_VALUE_KEY}
)


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
                payloads.keep_value(envelope.reference, value)
        elif value is MISSING:
            self._value = envelope.context.get("value")
        else:
            self._value = value

    def read_member(self, name: str) -> Any:
        self._note_use()
        context = self.envelope.context
        table = self.unread_table
        if table is not None:
            return self._table_member(table, name)
        if self.known_row_count is None:
            if name in context and name not in RESERVED and not self.is_in_memory:
                return context[name]
            value = self.load_plain()
            if isinstance(value, dict) and name in value:
                return self._resolve_member(name, value[name])
            if name == "value" and isinstance(value, dict) and HANDLE_KEY in value:
                return self._payloads.keychain.get_secret(value[HANDLE_KEY], value.get("provider"))
        return self._envelope_fact(name)

    @property
    def unread_table(self) -> Reference | None:
        """The reference, if the value is a map with its rows stored as a row set and is not in
        memory."""
        reference = self.envelope.reference
        if reference is None or reference.rows_at is None or self.is_in_memory:
            return None
        return reference

    def _table_member(self, table: Reference, name: str) -> Any:
        """A member of a map that has its rows stored as a row set."""
        context = self.envelope.context
        if name == table.rows_at:
            rows = replace(table, rows_at=None)
            envelope = replace(self.envelope, reference=rows, context={})
            return LazyResult(envelope, self._payloads)
        if name in context and (name not in RESERVED or name in ("row_count", "columns")):
            return context[name]
        head = self._payloads.get_head(table)
        if name in head:
            return head[name]
        return self._envelope_fact(name)

    def _envelope_fact(self, name: str) -> Any:
        envelope = self.envelope
        match name:
            case "rows" if self._is_list():
                return self
            case "body" if "http" in envelope.context:
                return self.read_member("data")
            case "data":
                return self
            case "row_count":
                if self._is_list():
                    return self.read_length()
                return envelope.context["row_count"]
            case "results":
                return {
                    task: self._lazy_task_result(reference)
                    for task, reference in self._task_references().items()
                }
            case "error" if envelope.error is None:
                return NO_ERROR
            case "ref" | "status" | "error" | "context" | "meta":
                return build_output_facts(envelope)[name]
            case "http" | "pg" | "py" | "spark" | "columns" | "stats":
                return envelope.context[name]
            case _:
                raise LookupError(name)

    def list_facts(self) -> dict[str, Any]:
        """What a template can read of a result that has no value."""
        facts = build_output_facts(self.envelope)
        if "results" in self.envelope.context:
            facts["results"] = self._envelope_fact("results")
        return facts

    def _resolve_member(self, name: str, value: Any) -> Any:
        """The member `name`. If it is one of several frames, it is stored as a payload of its own.

        A tool's own data may look like a link, but it cannot name the address of this member.
        """
        whole = self.envelope.reference
        if whole is None or not is_reference(value) or not isinstance(value[LINK_KEY], dict):
            return value
        if not is_member_uri(whole.uri, name, value[LINK_KEY].get("uri")):
            return value
        reference = msgspec.convert(value[LINK_KEY], Reference)
        context = {}
        if reference.rows_at is not None:
            context = {"row_count": reference.rows}
        envelope = Envelope(
            status="ok",
            reference=reference,
            context=context,
        )
        return LazyResult(envelope, self._payloads)

    def _task_references(self) -> dict[str, Any]:
        """The references of a pipeline's tasks, by name."""
        listed: dict[str, Any] = self.envelope.context["results"]
        if LINK_KEY in listed:  # there are too many for the context
            listed = self._payloads.get_whole(msgspec.convert(listed[LINK_KEY], Reference))
        return listed

    def _lazy_task_result(self, reference: Any) -> Any:
        if reference is None:
            return None
        envelope = Envelope(status="ok", reference=msgspec.convert(reference, Reference))
        return LazyResult(envelope, self._payloads)

    def read_item(self, index: int | slice) -> Any:
        self._note_use()
        if self.unread_table is not None:
            raise LookupError(index)
        size = self.known_row_count
        if size is None or self.is_in_memory:
            value = self.load_plain()
            if isinstance(value, list) or isinstance(index, slice):
                return value[index]
            return get_item(value, index, "item")
        reference = self.envelope.reference
        assert reference is not None
        if isinstance(index, int):
            if not -size <= index < size:
                raise LookupError(index)
            position = index % size
            return self._payloads.get_rows(reference, position, position + 1)[0]
        start, stop, stride = index.indices(size)
        if stride != 1:
            return self.load_plain()[index]
        return self._payloads.get_rows(reference, start, max(start, stop))

    def read_length(self) -> int:
        self._note_use()
        size = self.known_row_count
        if size is not None:
            return size
        table = self.unread_table
        if table is not None:
            return len(self._payloads.get_head(table))
        value = self.load_plain()
        if isinstance(value, list | dict | str):
            return len(value)
        raise FailedError(f"{kind_of(value)} has no length")

    def load_plain(self) -> Any:
        return add_body(self.stored_value())

    def stored_value(self) -> Any:
        """The value as the store has it."""
        self._note_use()
        reference = self.envelope.reference
        if reference is None:
            return self._value
        return self._payloads.get_whole(reference)

    def _note_use(self) -> None:
        """Note the payload as an input: any use counts, also of the envelope's scalars."""
        reference = self.envelope.reference
        if reference is not None:
            self._payloads.note_input(reference)

    @property
    def known_row_count(self) -> int | None:
        """The number of rows, if the payload is known to be a list."""
        reference = self.envelope.reference
        if reference is None or self.is_in_memory or reference.rows_at is not None:
            return None
        if reference.rows is None and is_manifest(reference):
            return self.envelope.context.get("row_count")
        return reference.rows

    @property
    def is_in_memory(self) -> bool:
        reference = self.envelope.reference
        return reference is None or self._payloads.is_in_memory(reference)

    def _is_list(self) -> bool:
        if self.known_row_count is not None:
            return True
        return self.unread_table is None and isinstance(self.load_plain(), list)


class HttpValue:
    """The value of an HTTP call. A name that the value itself lacks is looked up in its `data`."""

    def __init__(self, inner: LazyResult) -> None:
        self.inner = inner

    def read_member(self, name: str) -> Any:
        if self.inner.unread_table is not None:  # its `data` is a list
            return self.inner.read_member(name)
        value = self.load_plain()
        if isinstance(value, dict) and name not in value and "data" in value:
            data = value["data"]
            found = get_member(data, name, name)
            if isinstance(data, dict) and name in data:
                return found
        return self.inner.read_member(name)

    def read_item(self, index: int | slice) -> Any:
        return self.inner.read_item(index)

    def read_length(self) -> int:
        return self.inner.read_length()

    def load_plain(self) -> Any:
        return self.inner.load_plain()


def response_value(stored: LazyResult) -> LazyResult | HttpValue:
    """The result as `response` and `result` show it."""
    if "http" in stored.envelope.context:
        return HttpValue(stored)
    return stored


def value_or_undefined(
    stored: LazyResult,
    name: str,
    what: str,
) -> LazyResult | Undefined:
    """The result as templates see it under this name.

    A failed step or task (`what`, such as "step load") has no value, only facts such as `status`
    and `error`.
    """
    because = stored.envelope.explain_no_value(what)
    if because:
        return make_failed_value(name, because, stored.list_facts())
    return stored


def resolve_ctx_links(value: Any, payloads: ResultReader) -> Any:
    """A value of `ctx` with every link in it replaced by a Lazy."""

    def follow_link(reference: Reference) -> LazyResult:
        payloads.allowed_uris.add(reference.uri)
        return LazyResult(Envelope(status="ok", reference=reference), payloads)

    return replace_links(value, follow_link)
