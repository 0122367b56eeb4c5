"""What an execution that has not ended does, in a few words: what it waits for, and how far its
loop is. Lists of executions show it."""

from typing import Any, Literal

from msgspec import Struct

from noetl.model.ids import Micros

WaitReason = Literal["approval", "signal", "paused", "quarantined", "place", "child", "timer"]
# What only a person can end.
PERSON_REASONS: frozenset[str] = frozenset({"approval", "signal", "paused", "quarantined"})


class AwaitedThing(Struct, frozen=True, omit_defaults=True):
    """What an execution waits for. `name` is that of the signal, or the id of the child."""

    on: WaitReason
    step: str | None = None
    name: str | None = None
    since: Micros | None = None  # when its step began
    question: dict[str, Any] = {}  # of an approval: what is asked
    by: str | None = None  # of an approval: who has started the execution


class LoopProgress(Struct, frozen=True, omit_defaults=True):
    """How far a loop is. `total` is None for a cursor that has not come to its end."""

    step: str
    done: int
    failed: int
    total: int | None = None


class LiveSummary(Struct, frozen=True, omit_defaults=True):
    waits_for: AwaitedThing | None = None
    progress: LoopProgress | None = None

    @property
    def waits_for_person(self) -> bool:
        return self.waits_for is not None and self.waits_for.on in PERSON_REASONS
