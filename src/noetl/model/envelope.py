"""Envelope v3: what the control plane knows of a result. Scalars and references only, at most 8 KB."""

from typing import Any, Literal

import msgspec
from msgspec import Struct

from noetl.model.errors import Failure
from noetl.model.reference import ParentRef, Reference

Status = Literal["ok", "error", "skipped", "break", "cancelled"]
CONTEXT_LIMIT = 8_192
SELECTIONS = "selections"  # the part of `context` that holds what server-side expressions asked for


class Selected(Struct, frozen=True, omit_defaults=True):
    """One selection as the worker found it: a value, undefined (what was missing), an error, or too large (a reference)."""

    value: Any = None
    missing: str | None = None
    error: str | None = None
    reference: str | None = None
    absent: Literal["", "error", "step"] = ""  # why it is missing, when there is nothing to tell


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

    def selected(self, selection: str) -> Selected | None:
        found = self.context.get(SELECTIONS, {}).get(selection)
        return None if found is None else msgspec.convert(found, Selected)

    def bare(self) -> "Envelope":
        """The same without its context: for events that follow the one that already carries it."""
        return msgspec.structs.replace(self, context={}, meta=None)

    def known(self) -> "Envelope":
        """What decisions and templates may know of it: the input is for those who look into the log."""
        if self.meta is None or self.meta.input is None:
            return self
        return msgspec.structs.replace(self, meta=msgspec.structs.replace(self.meta, input=None))


def failed(failure: Failure, **context: Any) -> Envelope:
    return Envelope(status="error", error=failure, context=context)
