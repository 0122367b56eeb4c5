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


def make_credential_view(row: SealedCredential) -> CredentialView:
    return CredentialView(
        name=row.name,
        kind=row.kind,
        created_at=format_iso(row.created_at),
        changed_at=format_iso(row.changed_at),
    )
