"""Stored credentials on a worker: asked of a server just before they are used, and kept for a moment."""

import asyncio
from collections import OrderedDict
from typing import Any

from noetl.model.errors import NotFound
from noetl.pipeline.patience import patiently
from noetl.tools.credentials import missing
from noetl.worker.channel import Channel

KEPT_FOR = 10.0  # seconds: how long one that was replaced or deleted may still be used
MOST = 100


class StoredCredentials:
    """A loop asks for the same one with every item; one that is missing is asked for each time, since it may be added.
    Of a server that is away it is asked again, as results are."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._kept: OrderedDict[str, tuple[float, dict[str, Any]]] = OrderedDict()

    async def get(self, name: str) -> dict[str, Any]:
        now = asyncio.get_running_loop().time
        until, fields = self._kept.get(name, (0.0, {}))
        if now() < until:
            return dict(fields)
        self._kept.pop(name, None)
        try:
            fields = await patiently(lambda: self._channel.credential(name))
        except NotFound as error:
            raise missing(name) from error
        self._keep(name, now() + KEPT_FOR, fields)
        return dict(fields)

    def _keep(self, name: str, until: float, fields: dict[str, Any]) -> None:
        """The oldest goes first, and with it whatever its time has come for."""
        self._kept[name] = until, fields
        while len(self._kept) > MOST or next(iter(self._kept.values()))[0] <= until - KEPT_FOR:
            self._kept.popitem(last=False)
