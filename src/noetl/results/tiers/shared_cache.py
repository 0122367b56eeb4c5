"""A cache of small payloads in NATS KV: a payload that one worker has read from a server is here
for the others.

It is only a cache. Readers check each payload against its reference, and ask a server for payloads
that are not here. After NATS fails or is slow, it is not used for `PAUSE` seconds, so no reader
waits longer than `PATIENCE` for it.
"""

import asyncio
import logging
from collections.abc import Coroutine
from hashlib import sha256
from typing import Any

import nats
from nats.aio.client import Client
from nats.errors import Error
from nats.js.api import KeyValueConfig, StorageType
from nats.js.errors import APIError, BucketNotFoundError, KeyNotFoundError
from nats.js.kv import KeyValue

from noetl.results.tenancy import StoreTenant

log = logging.getLogger(__name__)

BUCKET_NAME = "noetl_results"
NATS_TIMEOUT_S = 0.25  # seconds to wait for an answer
NATS_PAUSE_S = 5.0  # seconds without NATS after it failed
ENTRY_TTL_S = 3_600.0  # seconds until an entry expires
MAX_BUCKET_BYTES = 256 << 20  # limit for all entries; NATS reserves it
MAX_PENDING_PUTS = 64  # puts in flight; further payloads are not cached
MAX_HEADER_BYTES = 1_024  # the most bytes that a message takes in addition to its payload


class SharedCache:
    def __init__(
        self,
        url: str,
        bucket: str = BUCKET_NAME,
        limit: int = MAX_BUCKET_BYTES,
        tenant: StoreTenant | None = None,
    ) -> None:
        self._servers = [server.strip() for server in url.split(",")]
        self._bucket = bucket
        self._limit = limit
        self._tenant = tenant or StoreTenant()
        self._client: Client | None = None
        self._entries: KeyValue | None = None
        self._not_before = 0.0
        self._tasks: set[asyncio.Task[None]] = set()

    async def get(self, uri: str) -> bytes | None:
        if self._entries is None:
            self._start_reconnect()
            return None
        try:
            async with asyncio.timeout(NATS_TIMEOUT_S):
                entry = await self._entries.get(self._make_key(uri))
                return entry.value
        except KeyNotFoundError:
            return None
        except (Error, TimeoutError, OSError) as error:
            self._disconnect(error)
            return None

    def add(self, uri: str, data: bytes) -> None:
        """Start a put in the background."""
        client, entries = self._client, self._entries
        if client is None or entries is None or len(self._tasks) >= MAX_PENDING_PUTS:
            return
        if len(data) + MAX_HEADER_BYTES <= client.max_payload:
            self._spawn_task(self._put_entry(entries, uri, data))

    async def _put_entry(self, entries: KeyValue, uri: str, data: bytes) -> None:
        try:
            async with asyncio.timeout(NATS_TIMEOUT_S):
                await entries.put(self._make_key(uri), data)
        except APIError as error:  # the bucket is full until entries expire
            log.debug("payload not shared", extra={"error": str(error)})
        except (Error, TimeoutError, OSError) as error:
            self._disconnect(error)

    async def open(self) -> bool:
        """Connect. Returns False if NATS cannot be used now."""
        self._not_before = asyncio.get_running_loop().time() + NATS_PAUSE_S
        try:
            async with asyncio.timeout(NATS_PAUSE_S):
                client = await nats.connect(
                    self._servers,
                    name="noetl",
                    connect_timeout=1,
                    error_cb=_ignore_error,
                    allow_reconnect=False,
                    max_reconnect_attempts=1,
                    reconnect_time_wait=0,
                )
        except (Error, TimeoutError, OSError, ValueError) as error:
            log.warning(
                "NATS is not there: small results are read from servers",
                extra={"error": _describe_error(error)},
            )
            return False
        try:
            self._entries = await self._open_bucket(client)
        except (Error, TimeoutError, OSError) as error:
            log.warning(
                "NATS keeps no results: is JetStream on?", extra={"error": _describe_error(error)}
            )
            await client.close()
            return False
        self._client = client
        return True

    async def _open_bucket(self, client: Client) -> KeyValue:
        stream = client.jetstream(timeout=1)
        try:
            return await stream.key_value(self._bucket)
        except BucketNotFoundError:
            config = KeyValueConfig(
                self._bucket,
                ttl=ENTRY_TTL_S,
                max_bytes=self._limit,
                storage=StorageType.MEMORY,
                direct=True,
                description="what workers have read of small results",
            )
            return await stream.create_key_value(config)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        client, self._client, self._entries = self._client, None, None
        if client is not None:
            await client.close()

    def _make_key(self, uri: str) -> str:
        return sha256(self._tenant.make_cache_key(uri).encode()).hexdigest()

    def _start_reconnect(self) -> None:
        if asyncio.get_running_loop().time() >= self._not_before:
            self._not_before = float("inf")  # until this attempt has ended
            self._spawn_task(self.open())

    def _disconnect(self, error: Exception) -> None:
        client, self._client, self._entries = self._client, None, None
        if client is None:
            return
        log.warning("NATS is left alone for a while", extra={"error": _describe_error(error)})
        self._not_before = asyncio.get_running_loop().time() + NATS_PAUSE_S
        self._spawn_task(client.close())

    def _spawn_task(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _ignore_error(error: Exception) -> None:
    """Ignore errors that the client reports on its own: the calls that fail report them too."""


def _describe_error(error: Exception) -> str:
    return str(error) or type(error).__name__
