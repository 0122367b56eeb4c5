"""The structs that answers about the caller have."""

from typing import Annotated

from noetl.server.http.structs import View, describe


class SessionView(View, frozen=True):
    name: Annotated[str, describe(example="local")]
    tenant: Annotated[int, describe(example=1)]
    roles: Annotated[list[str], describe(example=["admin"])]
    version: Annotated[str, describe("of the server", example="1.0.0")]
    local: Annotated[bool, describe("it is everyone on this machine: there was no login")]
