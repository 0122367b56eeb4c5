"""Small payloads in NATS KV, for workers that read the same: what one has read from a server, the others find here.

A cache and nothing else. Whoever reads checks what it finds against the reference, and asks a server for what is not here. A
NATS that is away or slow is left alone for a while: nobody waits for it longer than a moment.
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

log = logging.getLogger(__name__)

BUCKET = "noetl_results"
PATIENCE = 0.25  # seconds for an answer
PAUSE = 5.0  # seconds without NATS after it failed
KEPT = 3_600.0  # seconds that an entry stays
BYTES = 256 << 20  # of all entries: NATS sets them aside
UNDER_WAY = 64  # entries on their way to it; more are not kept
HEADERS = 1_024  # bytes that a message takes beside its payload, at most


class SharedCache:
    def __init__(self, url: str, bucket: str = BUCKET, limit: int = BYTES) -> None:
        self._servers = [each.strip() for each in url.split(",")]
        self._bucket = bucket
        self._limit = limit
        self._client: Client | None = None
        self._entries: KeyValue | None = None
        self._not_before = 0.0
        self._tasks: set[asyncio.Task[None]] = set()

    async def get(self, uri: str) -> bytes | None:
        if self._entries is None:
            self._try_again()
            return None
        try:
            async with asyncio.timeout(PATIENCE):
                return (await self._entries.get(_key(uri))).value
        except KeyNotFoundError:
            return None
        except (Error, TimeoutError, OSError) as error:
            self._leave(error)
            return None

    def add(self, uri: str, data: bytes) -> None:
        """Without waiting for it."""
        client, entries = self._client, self._entries
        if client is None or entries is None or len(self._tasks) >= UNDER_WAY:
            return
        if len(data) + HEADERS <= client.max_payload:
            self._spawn(self._put(entries, uri, data))

    async def _put(self, entries: KeyValue, uri: str, data: bytes) -> None:
        try:
            async with asyncio.timeout(PATIENCE):
                await entries.put(_key(uri), data)
        except APIError as error:  # full: it has room again when entries have grown old
            log.debug("payload not shared", extra={"error": str(error)})
        except (Error, TimeoutError, OSError) as error:
            self._leave(error)

    async def open(self) -> bool:
        """False: it cannot be used now."""
        self._not_before = asyncio.get_running_loop().time() + PAUSE
        try:
            async with asyncio.timeout(PAUSE):
                client = await nats.connect(
                    self._servers,
                    name="noetl",
                    connect_timeout=1,
                    error_cb=_hear,
                    allow_reconnect=False,
                    max_reconnect_attempts=1,
                    reconnect_time_wait=0,
                )
        except (Error, TimeoutError, OSError, ValueError) as error:
            log.warning(
                "NATS is not there: small results are read from servers",
                extra={"error": _said(error)},
            )
            return False
        try:
            self._entries = await self._opened(client)
        except (Error, TimeoutError, OSError) as error:
            log.warning("NATS keeps no results: is JetStream on?", extra={"error": _said(error)})
            await client.close()
            return False
        self._client = client
        return True

    async def _opened(self, client: Client) -> KeyValue:
        stream = client.jetstream(timeout=1)
        try:
            return await stream.key_value(self._bucket)
        except BucketNotFoundError:
            wanted = KeyValueConfig(
                self._bucket,
                ttl=KEPT,
                max_bytes=self._limit,
                storage=StorageType.MEMORY,
                direct=True,
                description="what workers have read of small results",
            )
            return await stream.create_key_value(wanted)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        client, self._client, self._entries = self._client, None, None
        if client is not None:
            await client.close()

    def _try_again(self) -> None:
        if asyncio.get_running_loop().time() >= self._not_before:
            self._not_before = float("inf")  # until that one has tried
            self._spawn(self.open())

    def _leave(self, error: Exception) -> None:
        client, self._client, self._entries = self._client, None, None
        if client is None:
            return
        log.warning("NATS is left alone for a while", extra={"error": _said(error)})
        self._not_before = asyncio.get_running_loop().time() + PAUSE
        self._spawn(client.close())

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _hear(error: Exception) -> None:
    """What it says by itself is not worth a line: who asks learns of it."""


def _said(error: Exception) -> str:
    return str(error) or type(error).__name__


def _key(uri: str) -> str:
    return sha256(uri.encode()).hexdigest()
