"""Decides which slots of a due schedule start, wait or are skipped, and when it is due again. Pure."""

from msgspec import Struct
from msgspec.structs import replace

from noetl.model.ids import Micros
from noetl.triggers import calendar
from noetl.triggers.port import DueSchedule, Schedule

# A slot that is later than this was missed: the catch-up policy decides about it.
MISSED_AFTER_MICROS = 10 * calendar.SECOND_MICROS
MAX_TURN_SLOTS = 20  # slots of one turn, including those that wait; later ones stay in the calendar


class ScheduleTurn(Struct, frozen=True):
    """The slots to start now, and the schedule afterwards."""

    starts: tuple[Micros, ...]
    after: Schedule


def decide_turn(due: DueSchedule) -> ScheduleTurn:
    schedule = due.schedule
    slots, next_at = _take_slots(schedule, due.now)
    ready = (*schedule.waiting, *slots)
    if schedule.overlap == "allow":
        starts = ready
    elif due.busy:
        starts = ()
    else:
        starts = ready[:1]
    rest = ready[len(starts) :]
    if schedule.overlap == "queue":
        after = replace(schedule, next_at=next_at, waiting=rest)
    else:
        skipped = schedule.skipped + len(rest)
        after = replace(schedule, next_at=next_at, waiting=(), skipped=skipped)
    return ScheduleTurn(starts, after)


def _take_slots(schedule: Schedule, now: Micros) -> tuple[tuple[Micros, ...], Micros | None]:
    """The slots that have come and are to run, and the first slot after them."""
    first = schedule.next_at
    room = MAX_TURN_SLOTS - len(schedule.waiting)
    if first is None or first > now or room <= 0:
        return (), first
    begin = first
    if schedule.catch_up != "all":
        begin = max(first, now - MISSED_AFTER_MICROS)
    slots: list[Micros] = []
    later: Micros | None = None
    for slot in calendar.iterate_slots(schedule.rule, begin - 1):
        if slot > now or len(slots) == room:
            later = slot
            break
        slots.append(slot)
    if not slots and schedule.catch_up == "last":
        slots = [calendar.find_last_slot(schedule.rule, first, now)]
    return tuple(slots), later
