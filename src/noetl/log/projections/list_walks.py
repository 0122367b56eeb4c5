"""Which index a list of executions follows. A lane is one walk along it, from the newest row on."""

from typing import Literal, NamedTuple

from noetl.log.projections.port import LAST_ID, ExecutionFilter, has_wildcard
from noetl.model.statuses import STATUSES

Walk = Literal["ids", "parent", "waiting", "path", "roots", "status"]


class Lane(NamedTuple):
    """The rows of one status, or of one range of ids."""

    status: str | None = None
    low: int = 0
    high: int = LAST_ID


def choose_walk(wanted: ExecutionFilter) -> Walk:
    if wanted.id_prefix:
        return "ids"
    if wanted.parent is not None:
        return "parent"
    if wanted.waiting:
        return "waiting"
    if wanted.path is not None and not has_wildcard(wanted.path):
        return "path"
    return "roots" if wanted.roots else "status"


def make_lanes(wanted: ExecutionFilter) -> list[Lane]:
    match choose_walk(wanted):
        case "ids":
            return [Lane(None, low, high) for low, high in wanted.id_ranges]
        case "parent" | "waiting":
            return [Lane()]
        case "path" | "roots" | "status":
            return [Lane(status) for status in wanted.statuses or STATUSES]
