"""Envelope v3: what the control plane knows of a result. Scalars and references, at most 8 KB."""

from typing import Any, Literal

import msgspec
from msgspec import Struct

from noetl.model.errors import Failure
from noetl.model.reference import ParentRef, Reference

Status = Literal["ok", "error", "skipped", "break", "cancelled"]
MAX_CONTEXT_BYTES = 8_192
MAX_SELECTIONS_BYTES = 2_048  # bytes of all selections of one envelope that are carried as values
MAX_SCALAR_BYTES = 256  # bytes of a text that is carried as a value; longer texts go by reference
NO_VALUE_KEY = "no_value"  # in `context`: the failure that left an ok result without a value
SELECTIONS_KEY = "selections"  # in `context`: the values that server-side expressions need


class Selected(Struct, frozen=True, omit_defaults=True):
    """The value of one selection: a scalar, undefined (`missing` names what was missing), an error,
    or the reference of a payload (`stored`). Older workers gave only its address (`reference`)."""

    value: Any = None
    missing: str | None = None
    error: str | None = None
    reference: str | None = None
    absent: Literal["", "error", "step"] = ""  # `error`: no failure; `step`: the step has no value
    because: str = ""  # the failure that left it without a value, in words
    stored: Reference | None = None


NOT_WRITTEN = Selected(missing="")  # the value of a reducer that no item has written


def is_scalar(value: Any) -> bool:
    """Whether an event may carry this value of a payload: a number, a boolean, null, or a short
    text. Lists, maps and longer texts always travel by reference."""
    if isinstance(value, str):
        if len(value) > MAX_SCALAR_BYTES:
            return False
        return len(value.encode("utf-8", "surrogatepass")) <= MAX_SCALAR_BYTES
    return value is None or isinstance(value, bool | int | float)


SCALAR_TYPES = frozenset({str, int, float, bool, type(None)})
# The members of `context` that are maps.
FACT_MAPS = frozenset({"http", "pg", "py", "spark", "stats", "results"})
CONTEXT_MAPS = FACT_MAPS | {SELECTIONS_KEY}
# A selection with a value that only a worker can find.
NEEDS_DATA: dict[str, Any] = {"reference": ""}


def has_rows(name: str, value: Any) -> bool:
    """Whether this member of a context holds a list or map of a payload.

    `columns` may be a list of names. The maps of tools hold facts, without lists. A selection has a
    scalar value. The migration `no_rows` has the same rule in SQL.
    """
    if type(value) in SCALAR_TYPES:
        return False
    if type(value) is dict and name in FACT_MAPS:
        return _has_list(value)
    if _is_leaf(value):
        return False
    if name == "columns":
        if isinstance(value, list):
            return not all(map(_is_leaf, value))
        return isinstance(value, dict)
    if name not in CONTEXT_MAPS or not isinstance(value, dict):
        return True
    if _has_list(value):
        return True
    return name == SELECTIONS_KEY and not all(
        _is_leaf(found.get("value")) for found in value.values()
    )


def remove_rows(context: dict[str, Any]) -> dict[str, Any]:
    """Remove lists and maps of a payload, which the log does not take. Returns the same object if
    there are none.

    Older workers reported lists and maps in selections. A worker evaluates those again when they
    are used.
    """
    for name, value in context.items():
        if has_rows(name, value):
            break
    else:
        return context
    kept = {name: value for name, value in context.items() if not has_rows(name, value)}
    selections = context.get(SELECTIONS_KEY)
    if isinstance(selections, dict):
        kept[SELECTIONS_KEY] = dict(selections)
        for name, selected in selections.items():
            if has_rows(SELECTIONS_KEY, {name: selected}):
                kept[SELECTIONS_KEY][name] = NEEDS_DATA
    return kept


def _is_leaf(value: Any) -> bool:
    return not isinstance(value, dict | list | tuple)


def _has_list(value: Any) -> bool:
    if not isinstance(value, dict):
        return isinstance(value, list | tuple)
    if SCALAR_TYPES.issuperset(map(type, value.values())):
        return False
    return any(map(_has_list, value.values()))


class Input(Struct, frozen=True, omit_defaults=True):
    """The input of a task without secrets: small scalars as values, or the address of a payload."""

    value: dict[str, Any] | None = None
    ref: str | None = None


class Meta(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Where a result comes from. `tool` is `{kind, version, noetl, runtime}`; `provenance` is the
    text of the playbook's author."""

    tool: dict[str, str] = {}
    input: Input | None = None
    provenance: dict[str, Any] = {}


class Envelope(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What the control plane knows of a result: its status, where its data is, and small scalars."""

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
        """The failure that a rule let pass and that left this ok result without a value."""
        if not self.ok or self.reference is not None:
            return ""
        return str(self.context.get(NO_VALUE_KEY, ""))

    def explain_no_value(self, what: str) -> str:
        """Why `what` ("step load") has no value; empty if it has one. A loop that failed still has
        the rows of its items."""
        if self.reference is not None:
            return ""
        if self.ok:
            return self.no_value
        if self.status != "error":
            return ""
        if self.error is None:
            return f"{what} failed"
        return f"{what} failed with {self.error.code}"

    def find_selection(self, selection: str) -> Selected | None:
        """The reported value of a selection. None if no worker reported it."""
        found = self.context.get(SELECTIONS_KEY, {}).get(selection)
        if found is None:
            return None
        return msgspec.convert(found, Selected)

    def without_context(self) -> "Envelope":
        """The envelope without context, for events after the one that carries the context."""
        context: dict[str, Any] = {}
        if self.reference is None and self.no_value:
            context = make_no_value_context(self.no_value)
        return msgspec.structs.replace(self, context=context, meta=None)

    def without_input(self) -> "Envelope":
        """The envelope without the task's input, which decisions and templates do not use."""
        if self.meta is None or self.meta.input is None:
            return self
        return msgspec.structs.replace(self, meta=msgspec.structs.replace(self.meta, input=None))


def make_no_value_context(because: str) -> dict[str, Any]:
    """The context of an ok result that has no value because of this failure."""
    return {NO_VALUE_KEY: because}


def make_failed_envelope(failure: Failure, **context: Any) -> Envelope:
    return Envelope(status="error", error=failure, context=context)
