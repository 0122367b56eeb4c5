"""Routes for stored credentials: add, list, delete. No route here shows their values."""

from typing import Annotated, Any

from fastapi import Path, Response
from pydantic import Field

from noetl.server.credentials.service import KINDS
from noetl.server.http import shapes
from noetl.server.http.bodies import DeletedView, RequestBody, View, make_router
from noetl.server.http.depends import Has, Who

routes = make_router("credentials")

Name = Annotated[
    str, Path(max_length=100, description="of a stored credential", examples=["warehouse"])
]


class CredentialBody(RequestBody):
    name: str = Field(max_length=100, examples=["warehouse"])
    kind: str = Field(max_length=100, description=", ".join(KINDS), examples=["postgres"])
    data: dict[str, Any] = Field(
        repr=False,
        description="its fields",
        examples=[{"host": "db.example", "user": "etl", "password": "…"}],
    )


class CredentialView(View):
    """A credential without its values."""

    name: str
    kind: str
    created_at: str
    changed_at: str


class AddedView(CredentialView):
    created: bool = Field(description="false: one of this name was replaced")


class CredentialsView(View):
    credentials: list[CredentialView]


@routes.post("/api/credentials", status_code=201)
async def add_credential(body: CredentialBody, response: Response, has: Has, who: Who) -> AddedView:
    """Store a credential, encrypted (201); one of the same name is replaced (200)."""
    added = await has.credentials.add(who, body.name, body.kind, body.data)
    response.status_code = 201 if added.created else 200
    return AddedView(**shapes.dump_credential(added.row), created=added.created)


@routes.get("/api/credentials")
async def list_credentials(has: Has, who: Who) -> CredentialsView:
    """Names and kinds of all credentials, sorted by name."""
    rows = await has.credentials.list_sealed(who)
    views = [CredentialView(**shapes.dump_credential(row)) for row in rows]
    return CredentialsView(credentials=views)


@routes.delete("/api/credentials/{name}")
async def delete_credential(name: Name, has: Has, who: Who) -> DeletedView:
    """Delete a credential. Workers that have it forget it within seconds."""
    await has.credentials.delete(who, name)
    return DeletedView(name=name)
