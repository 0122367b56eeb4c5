"""The contract of projections: the rows of executions that people read."""

from typing import Protocol

from msgspec import Struct

from noetl.model.ids import ExecutionId, Micros, Tenant
from noetl.model.live_summary import LiveSummary

MAX_WALKED_ROWS = 10_000  # rows that a list looks at for one page
MAX_COUNTED_ROWS = 10_000  # rows of one status that are counted
MAX_HISTOGRAM_ROWS = 50_000  # the newest rows, which a histogram shows
MAX_ID_DIGITS = 19  # of an id below 2^63
LAST_ID = (1 << 63) - 1
# Microseconds between making an execution's id and its start. `since` finds executions by their ids.
MAX_START_DELAY_MICROS = 3_600 * 1_000_000
MAX_LISTED_RETRIES = 20


class Projection(Struct, frozen=True, kw_only=True):
    """The row of an execution that people read. The shard's owner writes it, never ahead of the
    log.
    """

    execution_id: ExecutionId
    shard: int
    tenant: Tenant
    path: str
    status: str
    last_seq: int
    started_at: Micros
    updated_at: Micros
    ended_at: Micros | None = None
    parent: ExecutionId | None = None
    retry_of: ExecutionId | None = None
    error: str | None = None
    steps: int = 0
    recovered: int = 0  # failures that were handled
    live: LiveSummary | None = None  # of an execution that has not ended
    waiting: bool = False  # it waits for a person
    state: bytes | None = None
    state_hash: str | None = None


class ExecutionFilter(Struct, frozen=True, kw_only=True):
    """Which executions a list shows. None and an empty tuple match any."""

    statuses: tuple[str, ...] = ()
    path: str | None = None  # `*` matches any text: `etl/*`
    parent: ExecutionId | None = None
    since: Micros | None = None  # started then or later
    until: Micros | None = None  # started before that
    roots: bool = False  # only executions that no other execution started
    waiting: bool = False  # only executions that wait for a person
    id_prefix: str = ""  # digits with which the id begins
    text: str = ""  # the path begins with it, or the error has all of its words

    @property
    def words(self) -> tuple[str, ...]:
        """The words of the text, in lower case."""
        return tuple(self.text.lower().split())

    @property
    def id_ranges(self) -> list[tuple[int, int]]:
        """The ranges [low, high) of ids that begin with the prefix."""
        if self.id_prefix.startswith("0"):
            return []
        low = int(self.id_prefix)
        ranges: list[tuple[int, int]] = []
        for more_digits in range(MAX_ID_DIGITS - len(self.id_prefix) + 1):
            scale = 10**more_digits
            if low * scale < LAST_ID:
                ranges.append((low * scale, min((low + 1) * scale, LAST_ID)))
        return ranges


class WalkEnd(Struct, frozen=True):
    """How far a list looks for one page: the number of rows, and the last of them if there are
    more."""

    looked_at: int
    last: ExecutionId | None = None


class StatusCount(Struct, frozen=True):
    """The number of executions of a status; `more` if there are more than were counted."""

    n: int
    more: bool = False


class Histogram(Struct, frozen=True):
    """Executions by status and time. A bucket is `width_ms` long; the first begins at `start_ms`,
    in milliseconds since 1970. `reaches_back_to` is set if there are older executions in the
    window, which are not counted."""

    start_ms: int
    width_ms: int
    by_status: dict[str, list[int]]
    reaches_back_to: Micros | None = None


def has_wildcard(path: str | None) -> bool:
    return path is not None and "*" in path


class ShardRows(Struct, frozen=True):
    """Projections of one shard after the event `checkpoint`, written under `epoch`."""

    shard: int
    epoch: int
    checkpoint: int
    rows: tuple[Projection, ...]


class Projections(Protocol):
    async def write_projections(self, batch: list[ShardRows]) -> list[bool]:
        """Write projections. False for a shard that has another epoch by now."""
        ...

    async def read_projection(self, execution_id: ExecutionId) -> Projection | None: ...

    async def list_executions(
        self, tenant: Tenant, wanted: ExecutionFilter, before: ExecutionId | None, limit: int
    ) -> list[Projection]:
        """Projections older than `before`, newest first, without `state`.

        If the filter has no index of its own, at most MAX_WALKED_ROWS rows are looked at (of each
        status, if the list goes by status). So a list may be shorter than `limit` although older
        rows match: `find_walk_end` says where it ended.
        """
        ...

    async def find_walk_end(
        self, tenant: Tenant, wanted: ExecutionFilter, before: ExecutionId | None
    ) -> WalkEnd:
        """How far `list_executions` looks with these arguments if it does not find enough rows."""
        ...

    async def count_executions(
        self, tenant: Tenant, wanted: ExecutionFilter
    ) -> dict[str, StatusCount]:
        """The number of executions by status; `waiting` is the number of those that wait for a
        person. Only the path, roots, and the window of the filter count; the window is compared
        with the moment at which an id was made.
        """
        ...

    async def make_histogram(
        self, tenant: Tenant, wanted: ExecutionFilter, end: Micros, buckets: int
    ) -> Histogram:
        """The newest executions that match, as in `count_executions`. The last bucket ends at `end`;
        the first begins at `since`, or at the oldest execution that is counted."""
        ...

    async def list_retries(self, execution_id: ExecutionId) -> list[ExecutionId]:
        """The newest MAX_LISTED_RETRIES executions that retry or rerun this one, newest first."""
        ...

    async def count_children(self, parent: ExecutionId) -> dict[str, int]:
        """The number of children by status."""
        ...

    async def read_checkpoint(self, shard: int) -> int: ...
