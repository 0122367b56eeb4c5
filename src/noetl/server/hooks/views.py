"""The structs that answers about hooks have."""

from typing import Annotated

from noetl.model.clock import format_iso
from noetl.server.http.structs import View, describe
from noetl.triggers.port import Hook


class HookView(View, frozen=True):
    name: str
    path: str
    version: int | None
    into: str | None
    secret: Annotated[str | None, describe("the name of a credential")]
    signature_header: str | None
    key_header: str | None
    created_at: str
    changed_at: str


class HookedView(HookView, frozen=True):
    created: Annotated[bool, describe("false: one of this name was replaced")]


class HooksView(View, frozen=True):
    hooks: list[HookView]
    next: Annotated[str | None, describe("the `after` of the next page")]


class UnhookedView(View, frozen=True):
    name: str


def make_hook_view(row: Hook) -> HookView:
    return HookView(
        name=row.name,
        path=row.path,
        version=row.version,
        into=row.into,
        secret=row.secret,
        signature_header=row.signature_header,
        key_header=row.key_header,
        created_at=format_iso(row.created_at),
        changed_at=format_iso(row.changed_at),
    )
