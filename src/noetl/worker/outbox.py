"""Reports on their way: repeated until acknowledged, in the order they were made."""

import asyncio
from itertools import islice

from msgspec import Struct

from noetl.model.events import Ending
from noetl.model.exchange import Ack, LeaseKey
from noetl.model.messages import Report

AT_ONCE = 80  # reports in one exchange: about as many steps as one append takes; what is larger than an exchange may be is halved


Place = tuple[LeaseKey, str]


class OutboxEntry(Struct, eq=False):
    report: Report
    held: LeaseKey
    place: Place
    ending: bool  # the worker lets go of the command with it
    answer: asyncio.Future[Ack] | None = None  # a journal entry whose task waits for it
    spooled: bool = False


class Outbox:
    """In the order they were made; found by their command too, since a worker may hold hundreds."""

    def __init__(self) -> None:
        self._entries: dict[Place, OutboxEntry] = {}
        self._endings: dict[Place, OutboxEntry] = {}
        self._of: dict[LeaseKey, dict[Place, None]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def add(
        self, report: Report, answer: asyncio.Future[Ack] | None = None, *, spooled: bool = False
    ) -> OutboxEntry:
        held = LeaseKey(report.command_id, report.attempt)
        place = held, report.key
        entry = OutboxEntry(report, held, place, isinstance(report.event, Ending), answer, spooled)
        self._entries[place] = entry
        self._of.setdefault(held, {})[place] = None
        if entry.ending:
            self._endings[place] = entry
        return entry

    def batch(self) -> list[OutboxEntry]:
        return list(islice(self._entries.values(), AT_ONCE))

    def endings(self) -> list[OutboxEntry]:
        return list(self._endings.values())

    @property
    def ending(self) -> int:
        """How many commands wait for their ending to be acknowledged."""
        return len(self._endings)

    def acknowledged(self, entry: OutboxEntry) -> None:
        self._remove(entry.place)

    def answers(
        self, batch: list[OutboxEntry], acks: tuple[Ack, ...]
    ) -> list[tuple[OutboxEntry, Ack]]:
        """Each entry of the batch that was answered, with its answer; a repeated acknowledgement changes nothing."""
        given = {(ack.command_id, ack.key): ack for ack in acks}
        found: list[tuple[OutboxEntry, Ack]] = []
        for entry in batch:
            ack = given.get((entry.held.command_id, entry.place[1]))
            if ack is not None and self._entries.get(entry.place) is entry:
                found.append((entry, ack))
        return found

    def forget(self, held: LeaseKey) -> None:
        """Entries of a command that is no longer worked on as this attempt, its ending excepted."""
        for place in list(self._of.get(held, ())):
            entry = self._entries[place]
            if not entry.ending:
                self._remove(place)
                if entry.answer is not None:
                    entry.answer.cancel()

    def has_ending(self, held: LeaseKey) -> bool:
        return any(place in self._endings for place in self._of.get(held, ()))

    def _remove(self, place: Place) -> None:
        self._endings.pop(place, None)
        if self._entries.pop(place, None) is not None:
            places = self._of[place[0]]
            places.pop(place, None)
            if not places:
                del self._of[place[0]]
