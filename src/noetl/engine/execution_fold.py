"""An execution as of one of its events: its state and its bands, and the marks at which they are stored."""

from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256

import msgspec

from noetl.engine.bands import Bands, decode_bands, encode_bands, fold_band
from noetl.engine.fold import evolve
from noetl.engine.state import (
    Execution,
    decode_execution,
    encode_execution,
    make_empty_execution,
)
from noetl.model.events import Event
from noetl.model.ids import ExecutionId

SNAPSHOT_INTERVAL_EVENTS = 1_000
LARGE_STATE_BYTES = 16 * 1024
LARGE_SNAPSHOT_INTERVAL_EVENTS = 4_000  # of states over `LARGE_STATE_BYTES`
FOLD_VERSION = 2  # raise it when a fold changes its meaning and no struct its shape


@dataclass(slots=True)
class ExecutionFold:
    """The fold of the events up to `seq`. It is changed in place by the events that follow."""

    state: Execution
    bands: Bands = field(default_factory=Bands)
    seq: int = 0

    def fold_event(self, seq: int, event: Event) -> None:
        self.state = evolve(self.state, event)
        fold_band(self.bands, seq, event)
        self.seq = seq

    @property
    def is_at_mark(self) -> bool:
        """Whether a snapshot may be stored here."""
        return self.state.events % SNAPSHOT_INTERVAL_EVENTS == 0

    def encode_snapshot(self) -> tuple[bytes, bytes] | None:
        """State and bands to store at a mark; None if the state is large and waits for a later one."""
        state = encode_execution(self.state)
        is_due = self.state.events % LARGE_SNAPSHOT_INTERVAL_EVENTS == 0
        if len(state) > LARGE_STATE_BYTES and not is_due:
            return None
        return state, encode_bands(self.bands)


def make_empty_fold(execution_id: ExecutionId) -> ExecutionFold:
    return ExecutionFold(make_empty_execution(execution_id))


def decode_fold(state: bytes, bands: bytes, seq: int) -> ExecutionFold:
    return ExecutionFold(decode_execution(state), decode_bands(bands), seq)


@cache
def compute_fold_shape() -> str:
    """The name of what a snapshot holds: a hash of the definitions of its structs."""
    schemas = msgspec.json.schema_components([Execution, Bands])
    text = msgspec.json.encode([FOLD_VERSION, schemas], order="sorted")
    return sha256(text).hexdigest()[:16]
