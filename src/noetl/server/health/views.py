"""The structs that answers about the health of the server have."""

from typing import Annotated

from noetl.server.http.structs import View, describe


class HealthView(View, frozen=True):
    status: Annotated[str, describe(example="ok")]


class ReadyView(View, frozen=True):
    ready: bool
    checks: Annotated[
        dict[str, str],
        describe(example={"lease": "ok", "shards": "ok", "store": "ok", "history": "ok"}),
    ]
