"""Reports that wait to be acknowledged.

They are repeated until then, in the order they were made.
"""

import asyncio
from itertools import islice

from msgspec import Struct

from noetl.model.events import Ending
from noetl.model.exchange import Ack, LeaseKey
from noetl.model.messages import Report

# Reports in one exchange: about as many steps as one append takes. If they are too large for an
# exchange, the channel sends half of them.
AT_ONCE = 80


Place = tuple[LeaseKey, str]  # the key of an entry: its lease, and the key of its report


class OutboxEntry(Struct, eq=False):
    """A report that waits to be acknowledged."""

    report: Report
    held: LeaseKey
    place: Place
    ending: bool  # whether the worker releases the command with it
    answer: asyncio.Future[Ack] | None = None  # for a journal entry that its task waits for
    spooled: bool = False


class Outbox:
    """Entries in the order they were made.

    They are also indexed by their command, because a worker may hold hundreds.
    """

    def __init__(self) -> None:
        self._entries: dict[Place, OutboxEntry] = {}
        self._endings: dict[Place, OutboxEntry] = {}
        self._of: dict[LeaseKey, dict[Place, None]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def add(
        self,
        report: Report,
        answer: asyncio.Future[Ack] | None = None,
        *,
        spooled: bool = False,
    ) -> OutboxEntry:
        lease_key = LeaseKey(report.command_id, report.attempt)
        place = lease_key, report.key
        entry = OutboxEntry(
            report, lease_key, place, isinstance(report.event, Ending), answer, spooled
        )
        self._entries[place] = entry
        self._of.setdefault(lease_key, {})[place] = None
        if entry.ending:
            self._endings[place] = entry
        return entry

    def batch(self) -> list[OutboxEntry]:
        return list(islice(self._entries.values(), AT_ONCE))

    def endings(self) -> list[OutboxEntry]:
        return list(self._endings.values())

    @property
    def ending(self) -> int:
        """How many commands wait for the acknowledgement of their ending."""
        return len(self._endings)

    def acknowledged(self, entry: OutboxEntry) -> None:
        self._remove(entry.place)

    def answers(
        self, batch: list[OutboxEntry], acks: tuple[Ack, ...]
    ) -> list[tuple[OutboxEntry, Ack]]:
        """The entries of the batch that were acknowledged, each with its acknowledgement.

        A repeated one changes nothing.
        """
        ack_by_key = {(ack.command_id, ack.key): ack for ack in acks}
        answered: list[tuple[OutboxEntry, Ack]] = []
        for entry in batch:
            ack = ack_by_key.get((entry.held.command_id, entry.place[1]))
            if ack is not None and self._entries.get(entry.place) is entry:
                answered.append((entry, ack))
        return answered

    def forget(self, lease_key: LeaseKey) -> None:
        """Remove the entries of an attempt that no longer runs here, except its ending."""
        for place in list(self._of.get(lease_key, ())):
            entry = self._entries[place]
            if not entry.ending:
                self._remove(place)
                if entry.answer is not None:
                    entry.answer.cancel()

    def has_ending(self, lease_key: LeaseKey) -> bool:
        return any(place in self._endings for place in self._of.get(lease_key, ()))

    def _remove(self, place: Place) -> None:
        self._endings.pop(place, None)
        if self._entries.pop(place, None) is not None:
            places = self._of[place[0]]
            places.pop(place, None)
            if not places:
                del self._of[place[0]]
