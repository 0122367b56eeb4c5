"""What a schedule does when it is due: which slots start, wait or are passed over, and when it is due again. Pure."""

from dataclasses import dataclass

from msgspec.structs import replace

from noetl.model.ids import Micros
from noetl.triggers import calendar
from noetl.triggers.port import Due, Schedule

GRACE = (
    10 * calendar.SECOND
)  # a slot that is later than this was missed: its catch-up policy says what becomes of it
MOST = 20  # slots of one turn, and slots that wait; what is beyond stays in the calendar


@dataclass(frozen=True, slots=True)
class TriggerTurn:
    starts: tuple[Micros, ...]
    after: Schedule


def turn(due: Due) -> TriggerTurn:
    schedule = due.schedule
    taken, next_at = _taken(schedule, due.now)
    ready = (*schedule.waiting, *taken)
    if schedule.overlap == "allow":
        starts = ready
    else:
        starts = () if due.busy else ready[:1]
    rest = ready[len(starts) :]
    queues = schedule.overlap == "queue"
    after = replace(
        schedule,
        next_at=next_at,
        waiting=rest if queues else (),
        skipped=schedule.skipped + (0 if queues else len(rest)),
    )
    return TriggerTurn(starts, after)


def _taken(schedule: Schedule, now: Micros) -> tuple[tuple[Micros, ...], Micros | None]:
    """The slots that have come and are to be run, and the first one that is left for later."""
    first, room = schedule.next_at, MOST - len(schedule.waiting)
    if first is None or first > now or room <= 0:
        return (), first
    begin = first - 1 if schedule.catch_up == "all" else max(first, now - GRACE) - 1
    taken: list[Micros] = []
    later: Micros | None = None
    for slot in calendar.slots(schedule.rule, begin):
        if slot > now or len(taken) == room:
            later = slot
            break
        taken.append(slot)
    if not taken and schedule.catch_up == "last":
        taken = [calendar.last(schedule.rule, first, now)]
    return tuple(taken), later
