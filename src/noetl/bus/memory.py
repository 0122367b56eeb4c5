"""Hints in memory. A subject that is published several times before a wake-up is yielded once."""

import asyncio
from typing import Self


class Subscription:
    """Yields published subjects. It collects from its creation on, so that a hint between
    `subscribe` and the first wait is not missed."""

    def __init__(self, bus: "BusMemory", subjects: tuple[str, ...]) -> None:
        self._bus = bus
        self._subjects = subjects
        self._pending: dict[str, None] = {}
        self._woken = asyncio.Event()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> str:
        while not self._pending:
            self._woken.clear()
            await self._woken.wait()
        subject = next(iter(self._pending))
        del self._pending[subject]
        return subject

    def notify(self, subject: str) -> None:
        self._pending[subject] = None
        self._woken.set()

    async def aclose(self) -> None:
        self._bus.unsubscribe(self, self._subjects)


class BusMemory:
    def __init__(self) -> None:
        self._subscribers: dict[str, dict[Subscription, None]] = {}

    async def publish(self, subject: str) -> None:
        for subscription in list(self._subscribers.get(subject, ())):
            subscription.notify(subject)

    def subscribe(self, *subjects: str) -> Subscription:
        subscription = Subscription(self, subjects)
        for subject in subjects:
            self._subscribers.setdefault(subject, {})[subscription] = None
        return subscription

    def unsubscribe(self, subscription: Subscription, subjects: tuple[str, ...]) -> None:
        for subject in subjects:
            listeners = self._subscribers.get(subject, {})
            listeners.pop(subscription, None)
            if not listeners:
                self._subscribers.pop(subject, None)
