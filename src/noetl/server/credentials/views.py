"""The structs that answers about credentials have. They never contain values."""

from typing import Annotated

from noetl.catalog.port import SealedCredential
from noetl.model.clock import format_iso
from noetl.server.http.structs import View, describe


class CredentialView(View, frozen=True):
    """A credential without its values."""

    name: str
    kind: str
    created_at: str
    changed_at: str


class AddedView(CredentialView, frozen=True):
    created: Annotated[bool, describe("false: one of this name was replaced")]


class CredentialsView(View, frozen=True):
    credentials: list[CredentialView]


class RewrappedView(View, frozen=True):
    """How far the change to the newest key is."""

    rewrapped: Annotated[int, describe("wrapped with the newest key by this call")]
    left: Annotated[int, describe("still wrapped with an older key: call again")]
    total: int
    unreadable: Annotated[
        list[str], describe("names of credentials that no key of this server opens")
    ]
    key: Annotated[str | None, describe("id of the newest key")]


def make_credential_view(row: SealedCredential) -> CredentialView:
    return CredentialView(
        name=row.name,
        kind=row.kind,
        created_at=format_iso(row.created_at),
        changed_at=format_iso(row.changed_at),
    )
