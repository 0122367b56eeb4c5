"""Hints by LISTEN/NOTIFY. Subscribers in this process are notified at once, others by one channel.

A hint is never part of another transaction, and `publish` does not wait for it: subjects are
collected and sent together, at most once per `gap`. Hints are lost while the connection is broken;
all subscribers are woken when it is back.
"""

import asyncio
import logging
from contextlib import suppress
from typing import Any, Self

from noetl.backoff import Backoff
from noetl.bus.memory import BusMemory
from noetl.postgres.pool import CONNECT_TIMEOUT_S, Connection, Database

log = logging.getLogger(__name__)

CHANNEL = "noetl_hints"
NOTIFY_INTERVAL_S = 0.01  # seconds between notifications; hints in between go together
MAX_NOTIFY_BYTES = 7_000  # bytes; Postgres takes less than 8 000
FIRST_RECONNECT_DELAY_S = 0.05  # seconds before connecting again, doubled after each failure
MAX_RECONNECT_DELAY_S = 1.0


class BusPostgres(BusMemory):
    def __init__(self, database: Database, gap: float = NOTIFY_INTERVAL_S) -> None:
        super().__init__()
        self._database = database
        self._gap = gap
        self._pending: dict[str, None] = {}
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._connection: Connection | None = None
        self.connected = asyncio.Event()

    async def __aenter__(self) -> Self:
        """Start listening. Returns once connected, or after CONNECT_TIMEOUT and then keeps
        trying."""
        self._task = asyncio.create_task(self._keep_connected())
        with suppress(TimeoutError):
            await asyncio.wait_for(self.connected.wait(), CONNECT_TIMEOUT_S)
        return self

    async def __aexit__(self, *failure: object) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def publish(self, subject: str) -> None:
        self._notify_subscribers(subject)
        self._pending[subject] = None
        self._wake.set()

    def _notify_subscribers(self, subject: str) -> None:
        for subscription in list(self._subscribers.get(subject, ())):
            subscription.notify(subject)

    async def _keep_connected(self) -> None:
        backoff = Backoff(FIRST_RECONNECT_DELAY_S, MAX_RECONNECT_DELAY_S)
        while True:
            try:
                self._connection = await self._database.connect()
                await self._connection.add_listener(CHANNEL, self._receive_notification)
                self._connection.add_termination_listener(lambda _: self._wake.set())
                backoff.reset()
                for subject in list(self._subscribers):  # hints were lost: wake everyone
                    self._notify_subscribers(subject)
                self.connected.set()
                await self._send_notifications(self._connection)
            except Exception as error:  # a loop that must survive
                log.warning(
                    "hints wait for the database",
                    extra={"error": str(error), "delay": backoff.delay},
                )
            finally:
                self.connected.clear()
                self._end_listening()
            await asyncio.sleep(backoff.delay)
            backoff.count_failure()

    async def _send_notifications(self, connection: Connection) -> None:
        while not connection.is_closed():
            await self._wake.wait()
            self._wake.clear()
            while self._pending and not connection.is_closed():
                payload = self._take_payload()
                await connection.execute("select pg_notify($1, $2)", CHANNEL, payload, timeout=5)
                await asyncio.sleep(self._gap)

    def _take_payload(self) -> str:
        """Take pending subjects that fit into one notification."""
        subjects: list[str] = []
        size = 0
        while self._pending and size < MAX_NOTIFY_BYTES // 2:
            subject = next(iter(self._pending))
            del self._pending[subject]
            length = len(subject.encode())
            size += length + 1
            if length < MAX_NOTIFY_BYTES // 2:  # no subject in use is longer
                subjects.append(subject)
        return "\n".join(subjects)

    def _receive_notification(
        self, connection: Any, pid: int, channel: str, payload: object
    ) -> None:
        if self._connection is None or pid == self._connection.get_server_pid():
            return  # sent by this process: its subscribers are notified already
        for subject in str(payload).split("\n"):
            self._notify_subscribers(subject)

    def _end_listening(self) -> None:
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None
