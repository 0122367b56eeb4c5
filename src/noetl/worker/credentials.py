"""Stored credentials on a worker: read from a server before use, and cached for a few seconds."""

import asyncio
from collections import OrderedDict
from typing import Any

from noetl.model.errors import NotFound
from noetl.pipeline.patience import patiently
from noetl.tools.credentials import missing
from noetl.worker.channel import Channel

KEPT_FOR = 10.0  # seconds that a replaced or deleted credential may still be used
MOST = 100  # credentials in the cache


class StoredCredentials:
    """A cache, because a loop asks for the same credential with every item.

    A missing credential is not cached, since it may be added. While no server answers, the call is
    retried, as for results.
    """

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
        """Add to the cache.

        Entries are in the order of their age, so old and expired ones go first.
        """
        self._kept[name] = until, fields
        now = until - KEPT_FOR
        while True:
            oldest_until, _ = next(iter(self._kept.values()))
            if len(self._kept) <= MOST and oldest_until > now:
                return
            self._kept.popitem(last=False)
