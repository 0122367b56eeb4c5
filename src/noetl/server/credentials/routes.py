"""Routes for stored credentials: add, list, delete. No route here shows their values."""

from typing import Annotated, Any

from noetl.server.credentials.service import KINDS
from noetl.server.credentials.views import AddedView, CredentialsView, RewrappedView
from noetl.server.http.depends import Has, Who
from noetl.server.http.parameters import PathParameter
from noetl.server.http.routing import Reply, Routes
from noetl.server.http.structs import DeletedView, RequestBody, describe

routes = Routes("credentials")

Name = Annotated[
    str, PathParameter("of a stored credential", max_length=100, examples=["warehouse"])
]


class CredentialBody(RequestBody, frozen=True):
    name: Annotated[str, describe(example="warehouse", max_length=100)]
    kind: Annotated[str, describe(", ".join(KINDS), example="postgres", max_length=100)]
    data: Annotated[
        dict[str, Any],
        describe("its fields", example={"host": "db.example", "user": "etl", "password": "…"}),
    ]

    def __repr__(self) -> str:
        return f"CredentialBody(name={self.name!r}, kind={self.kind!r})"


@routes.post("/api/credentials", status=201)
async def add_credential(body: CredentialBody, has: Has, who: Who) -> Reply[AddedView]:
    """Store a credential, encrypted (201); one of the same name is replaced (200)."""
    added = await has.credentials.add(who, body.name, body.kind, body.data)
    return Reply(added, 201 if added.created else 200)


@routes.post("/api/credentials/rewrap")
async def rewrap_credentials(has: Has, who: Who) -> RewrappedView:
    """Wrap the next credentials with the newest key. Call it until `left` is 0; their values stay as they are."""
    return await has.credentials.rewrap(who)


@routes.get("/api/credentials")
async def list_credentials(has: Has, who: Who) -> CredentialsView:
    """Names and kinds of all credentials, sorted by name."""
    return await has.credentials.list_all(who)


@routes.delete("/api/credentials/{name}")
async def delete_credential(name: Name, has: Has, who: Who) -> DeletedView:
    """Delete a credential. Workers that have it forget it within seconds."""
    return await has.credentials.delete(who, name)
