"""Reports on their way: repeated until acknowledged, in the order they were made."""

import asyncio
from dataclasses import dataclass

from noetl.model.events import Ending
from noetl.model.exchange import Ack, Held
from noetl.model.ids import CommandId
from noetl.model.messages import Report

AT_ONCE = 64  # reports in one exchange: far below its limit of 4 MB, since a report is some KB


@dataclass(slots=True, eq=False)
class Entry:
    report: Report
    answer: asyncio.Future[Ack] | None = None  # a journal entry whose task waits for it
    spooled: bool = False

    @property
    def ending(self) -> bool:
        """The worker lets go of the command with it."""
        return isinstance(self.report.event, Ending)

    @property
    def held(self) -> Held:
        return Held(self.report.command_id, self.report.attempt)


class Outbox:
    def __init__(self) -> None:
        self._entries: dict[tuple[CommandId, int, str], Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, report: Report, answer: asyncio.Future[Ack] | None = None, *, spooled: bool = False) -> Entry:
        entry = Entry(report, answer, spooled)
        self._entries[report.command_id, report.attempt, report.key] = entry
        return entry

    def batch(self) -> list[Entry]:
        return list(self._entries.values())[:AT_ONCE]

    def endings(self) -> list[Entry]:
        return [entry for entry in self._entries.values() if entry.ending]

    def acknowledged(self, entry: Entry) -> None:
        report = entry.report
        self._entries.pop((report.command_id, report.attempt, report.key), None)

    def answers(self, batch: list[Entry], acks: tuple[Ack, ...]) -> list[tuple[Entry, Ack]]:
        """Each entry of the batch that was answered, with its answer; a repeated acknowledgement changes nothing."""
        given = {(ack.command_id, ack.key): ack for ack in acks}
        found: list[tuple[Entry, Ack]] = []
        for entry in batch:
            ack = given.get((entry.report.command_id, entry.report.key))
            if ack is not None and self._is_here(entry):
                found.append((entry, ack))
        return found

    def _is_here(self, entry: Entry) -> bool:
        report = entry.report
        return self._entries.get((report.command_id, report.attempt, report.key)) is entry

    def forget(self, held: Held) -> None:
        """Entries of a command that is no longer worked on as this attempt, its ending excepted."""
        for key, entry in list(self._entries.items()):
            if entry.held == held and not entry.ending:
                del self._entries[key]
                if entry.answer is not None:
                    entry.answer.cancel()

    def has_ending(self, held: Held) -> bool:
        return any(entry.held == held for entry in self.endings())
