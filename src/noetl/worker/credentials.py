"""Stored credentials on a worker: read from a server before use, and cached for a few seconds."""

import asyncio
from collections import OrderedDict
from typing import Any

from noetl.model.errors import NotFound
from noetl.pipeline.retries import retry_while_unavailable
from noetl.tools.credentials.port import missing_credential
from noetl.worker.channel import Channel

CACHE_TTL_S = 10.0  # seconds that a replaced or deleted credential may still be used
MAX_CACHED_CREDENTIALS = 100  # credentials in the cache


class StoredCredentials:
    """A cache, because a loop asks for the same credential with every item.

    A missing credential is not cached, since it may be added. While no server answers, the call is
    retried, as for results.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._cache: OrderedDict[str, tuple[float, dict[str, Any]]] = OrderedDict()

    async def get(self, name: str) -> dict[str, Any]:
        now = asyncio.get_running_loop().time
        until, fields = self._cache.get(name, (0.0, {}))
        if now() < until:
            return dict(fields)
        self._cache.pop(name, None)
        try:
            fields = await retry_while_unavailable(lambda: self._channel.read_credential(name))
        except NotFound as error:
            raise missing_credential(name) from error
        self._add_to_cache(name, now() + CACHE_TTL_S, fields)
        return dict(fields)

    def _add_to_cache(self, name: str, until: float, fields: dict[str, Any]) -> None:
        """Add to the cache.

        Entries are in the order of their age, so old and expired ones go first.
        """
        self._cache[name] = until, fields
        now = until - CACHE_TTL_S
        while True:
            oldest_until, _ = next(iter(self._cache.values()))
            if len(self._cache) <= MAX_CACHED_CREDENTIALS and oldest_until > now:
                return
            self._cache.popitem(last=False)
