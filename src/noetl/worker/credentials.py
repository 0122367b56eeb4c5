"""Stored credentials on a worker: read from a server before use, and cached for a few seconds."""

import asyncio
from typing import Any

from noetl.caches import ExpiringCache
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
        self._cache: ExpiringCache[str, dict[str, Any]] = ExpiringCache(MAX_CACHED_CREDENTIALS)

    async def get(self, name: str) -> dict[str, Any]:
        now = asyncio.get_running_loop().time
        cached = self._cache.get(name, now())
        if cached is not None:
            return dict(cached)
        try:
            fields = await retry_while_unavailable(lambda: self._channel.read_credential(name))
        except NotFound as error:
            raise missing_credential(name) from error
        read_at = now()
        self._cache.put(name, fields, until=read_at + CACHE_TTL_S, now=read_at)
        return dict(fields)
