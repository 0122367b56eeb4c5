"""The structs that answers about the caller have."""

from typing import Annotated

from noetl.server.http.structs import View, describe


class SessionView(View, frozen=True):
    name: Annotated[str, describe(example="local")]
    tenant: Annotated[int, describe(example=1)]
    roles: Annotated[list[str], describe(example=["admin"])]
    version: Annotated[str, describe("of the server", example="1.0.0")]
    permissions: Annotated[
        list[str],
        describe("read, operate, write, administer, work: those of the roles", example=["read"]),
    ]


class LinkView(View, frozen=True):
    code: Annotated[str, describe("opens one session, once")]
    path: Annotated[str, describe("of the page that uses it", example="/login?code=…")]
    lifetime_s: Annotated[int, describe("seconds", example=120)]


class SignedOutView(View, frozen=True):
    ended: Annotated[bool, describe("false: there was no session")]
