"""Envelope v3: what the control plane knows of a result. Scalars and references only, at most 8 KB."""

from typing import Any, Literal

import msgspec
from msgspec import Struct

from noetl.model.errors import Failure
from noetl.model.reference import ParentRef, Reference

Status = Literal["ok", "error", "skipped", "break", "cancelled"]
CONTEXT_LIMIT = 8_192
SELECTIONS_LIMIT = 2_048  # bytes of all selections of one envelope that are carried as values
SCALAR_LIMIT = 256  # bytes of a text that is carried as a value; a longer one goes by reference
NO_VALUE = "no_value"  # the part of `context` that says which failure left a result that is ok without a value
SELECTIONS = "selections"  # the part of `context` that holds what server-side expressions asked for


class Selected(Struct, frozen=True, omit_defaults=True):
    """One selection as the worker found it: a scalar, undefined (what was missing), an error, or the reference of a payload that
    is its value (`stored`). `reference`, an address alone, is how older workers named one."""

    value: Any = None
    missing: str | None = None
    error: str | None = None
    reference: str | None = None
    absent: Literal["", "error", "step"] = ""  # why it is missing, when there is nothing to tell
    because: str = ""  # the failure that left it without a value, in words
    stored: Reference | None = None


NOT_WRITTEN = Selected(missing="")  # a reducer to which no item has given anything


def is_scalar(value: Any) -> bool:
    """Whether an event may carry this value of a payload: a number, a boolean, null, or a text of at most SCALAR_LIMIT bytes.
    Lists, maps and longer texts travel by reference, whatever their size."""
    if isinstance(value, str):
        return (
            len(value) <= SCALAR_LIMIT
            and len(value.encode("utf-8", "surrogatepass")) <= SCALAR_LIMIT
        )
    return value is None or isinstance(value, bool | int | float)


SCALAR_TYPES = frozenset({str, int, float, bool, type(None)})
MAPS = frozenset(
    {"http", "pg", "py", "spark", "stats", "results", SELECTIONS}
)  # members of `context` that are maps
NEEDS_DATA: dict[str, Any] = {
    "reference": ""
}  # a selection of which only a worker can tell the value


def has_rows(name: str, value: Any) -> bool:
    """Whether this member of a context holds a list or map of a payload. `columns` is a list of names; tools fill maps of facts,
    without lists; a selection has a scalar for its value. Migration `no_rows` says the same in SQL."""
    if type(value) in SCALAR_TYPES or _is_leaf(value):
        return False
    if name == "columns":
        return isinstance(value, dict) or (
            isinstance(value, list) and not all(map(_is_leaf, value))
        )
    if name not in MAPS or not isinstance(value, dict):
        return True
    if _has_list(value):
        return True
    return name == SELECTIONS and not all(_is_leaf(found.get("value")) for found in value.values())


def without_rows(context: dict[str, Any]) -> dict[str, Any]:
    """The context as the log takes it. Older workers have reported lists and maps in selections: a worker is asked for those
    when they are used."""
    if not any(has_rows(name, value) for name, value in context.items()):
        return context
    kept = {name: value for name, value in context.items() if not has_rows(name, value)}
    if isinstance(selections := context.get(SELECTIONS), dict):
        kept[SELECTIONS] = {
            name: NEEDS_DATA if has_rows(SELECTIONS, {name: found}) else found
            for name, found in selections.items()
        }
    return kept


def _is_leaf(value: Any) -> bool:
    return not isinstance(value, dict | list | tuple)


def _has_list(value: Any) -> bool:
    if not isinstance(value, dict):
        return isinstance(value, list | tuple)
    return any(_has_list(part) for part in value.values() if type(part) not in SCALAR_TYPES)


class Input(Struct, frozen=True, omit_defaults=True):
    """What a task was given, without secrets: small scalars themselves, anything else the address of a payload."""

    value: dict[str, Any] | None = None
    ref: str | None = None


class Meta(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Where a result comes from: `tool` is `{kind, version, noetl, runtime}`, `provenance` what the playbook's author says."""

    tool: dict[str, str] = {}
    input: Input | None = None
    provenance: dict[str, Any] = {}


class Envelope(Struct, frozen=True, omit_defaults=True, kw_only=True):
    status: Status
    reference: Reference | None = None
    parent_ref: ParentRef | None = None
    context: dict[str, Any] = {}
    error: Failure | None = None
    meta: Meta | None = None

    @property
    def ok(self) -> bool:
        return self.status in ("ok", "break")

    @property
    def no_value(self) -> str:
        """The failure that a rule let pass and that left this result, which is ok, without a value."""
        return str(self.context.get(NO_VALUE, "")) if self.ok and self.reference is None else ""

    def why_no_value(self, what: str) -> str:
        """Why `what` ("step load") has no value; empty if it has one. A loop that failed still has the rows of its items."""
        if self.no_value:
            return self.no_value
        if self.status != "error" or self.reference is not None:
            return ""
        return (
            f"{what} failed with {self.error.code}" if self.error is not None else f"{what} failed"
        )

    def selected(self, selection: str) -> Selected | None:
        found = self.context.get(SELECTIONS, {}).get(selection)
        return None if found is None else msgspec.convert(found, Selected)

    def bare(self) -> "Envelope":
        """The same without its context: for events that follow the one that already carries it."""
        kept = no_value_context(because) if (because := self.no_value) else {}
        return msgspec.structs.replace(self, context=kept, meta=None)

    def known(self) -> "Envelope":
        """What decisions and templates may know of it: the input is for those who look into the log."""
        if self.meta is None or self.meta.input is None:
            return self
        return msgspec.structs.replace(self, meta=msgspec.structs.replace(self.meta, input=None))


def no_value_context(because: str) -> dict[str, Any]:
    """The context of a result that is ok and has no value, because of this failure."""
    return {NO_VALUE: because}


def failed(failure: Failure, **context: Any) -> Envelope:
    return Envelope(status="error", error=failure, context=context)
