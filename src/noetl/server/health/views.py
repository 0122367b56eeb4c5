"""The structs that answers about the health of the server have."""

from typing import Annotated

from msgspec import Meta

from noetl.server.http.bodies import View


class HealthView(View, frozen=True):
    status: Annotated[str, Meta(examples=["ok"])]


class ReadyView(View, frozen=True):
    ready: bool
    checks: Annotated[
        dict[str, str],
        Meta(examples=[{"lease": "ok", "shards": "ok", "store": "ok", "history": "ok"}]),
    ]
