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
MAX_EXCHANGE_REPORTS = 80


EntryKey = tuple[LeaseKey, str]  # the key of an entry: its lease, and the key of its report


class OutboxEntry(Struct, eq=False):
    """A report that waits to be acknowledged."""

    report: Report
    lease_key: LeaseKey
    entry_key: EntryKey
    is_ending: bool  # whether the worker releases the command with it
    answer: asyncio.Future[Ack] | None = None  # for a journal entry that its task waits for
    spooled: bool = False


class Outbox:
    """Entries in the order they were made.

    They are also indexed by their command, because a worker may hold hundreds.
    """

    def __init__(self) -> None:
        self._entries: dict[EntryKey, OutboxEntry] = {}
        self._endings: dict[EntryKey, OutboxEntry] = {}
        self._by_lease: dict[LeaseKey, dict[EntryKey, None]] = {}

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
        self._by_lease.setdefault(lease_key, {})[place] = None
        if entry.is_ending:
            self._endings[place] = entry
        return entry

    def next_batch(self) -> list[OutboxEntry]:
        return list(islice(self._entries.values(), MAX_EXCHANGE_REPORTS))

    def list_endings(self) -> list[OutboxEntry]:
        return list(self._endings.values())

    @property
    def ending_count(self) -> int:
        """How many commands wait for the acknowledgement of their ending."""
        return len(self._endings)

    def remove_acknowledged(self, entry: OutboxEntry) -> None:
        self._remove_entry(entry.entry_key)

    def match_acks(
        self, batch: list[OutboxEntry], acks: tuple[Ack, ...]
    ) -> list[tuple[OutboxEntry, Ack]]:
        """The entries of the batch that were acknowledged, each with its acknowledgement.

        A repeated one changes nothing.
        """
        ack_by_key = {(ack.command_id, ack.key): ack for ack in acks}
        answered: list[tuple[OutboxEntry, Ack]] = []
        for entry in batch:
            ack = ack_by_key.get((entry.lease_key.command_id, entry.entry_key[1]))
            if ack is not None and self._entries.get(entry.entry_key) is entry:
                answered.append((entry, ack))
        return answered

    def forget_command(self, lease_key: LeaseKey) -> None:
        """Remove the entries of an attempt that no longer runs here, except its ending."""
        for place in list(self._by_lease.get(lease_key, ())):
            entry = self._entries[place]
            if not entry.is_ending:
                self._remove_entry(place)
                if entry.answer is not None:
                    entry.answer.cancel()

    def has_ending(self, lease_key: LeaseKey) -> bool:
        return any(place in self._endings for place in self._by_lease.get(lease_key, ()))

    def _remove_entry(self, place: EntryKey) -> None:
        self._endings.pop(place, None)
        if self._entries.pop(place, None) is not None:
            places = self._by_lease[place[0]]
            places.pop(place, None)
            if not places:
                del self._by_lease[place[0]]
