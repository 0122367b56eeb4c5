"""The rows of an append, one type for each array of `noetl.append`; rare things are JSON."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args, get_type_hints

from msgspec import Struct
from msgspec.structs import astuple

from noetl.log.columns import Document, Number, Payload, RefRow, Text

JsonRows = dict[str, list[dict[str, Any]]]  # by the name of the list in the JSON


class PartRow(Struct, gc=False):
    """The parameters `p_…` of `append`. The fields of these rows have the order of the parameters."""

    execution_id: Number
    shard: Number
    epoch: Number
    after: Number
    tenant: Number
    event_count: Number
    marks: Number  # bit 0: the execution ends; the others: groups of its events
    events: Document


class KeyRow(Struct, gc=False):
    """The parameters `k_…`: the key of an event that may be repeated. `nth` is its place in the
    part.
    """

    part: Number
    nth: Number
    key: Text


class TakenRow(Struct, gc=False):
    """The parameters `t_…`: a command that must still be leased as this attempt."""

    part: Number
    command_id: Text
    attempt: Number


class ConsumedRow(Struct, gc=False):
    """The parameters `i_…`: an inbox row that the part consumes."""

    part: Number
    inbox_id: Number


class MovedRow(Struct, gc=False):
    """The parameters `m_…`: a command that gets another status."""

    part: Number
    command_id: Text
    status: Text


class IssuedRow(Struct, gc=False):
    """The parameters `c_…`: a new command."""

    part: Number
    command_id: Text
    step: Text
    kind: Text
    pool: Text
    priority: Number
    status: Text
    attempt: Number
    available_at: Number
    worker: Text
    body: Payload


def _list_encoders(row_type: type) -> tuple[Callable[[Sequence[Any]], Any], ...]:
    hints = get_type_hints(row_type, include_extras=True).values()
    return tuple(get_args(hint)[1] for hint in hints)


_ENCODERS: dict[type, tuple[Callable[[Sequence[Any]], Any], ...]] = {
    row_type: _list_encoders(row_type)
    for row_type in (PartRow, KeyRow, TakenRow, ConsumedRow, MovedRow, IssuedRow, RefRow)
}


_EMPTY_COLUMNS = {
    row_type: [encode(()) for encode in encoders] for row_type, encoders in _ENCODERS.items()
}


def encode_columns(row_type: type, rows: Sequence[Struct]) -> list[Any]:
    """The columns of these rows, each as its parameter is passed."""
    if not rows:
        return _EMPTY_COLUMNS[row_type]
    encoders = _ENCODERS[row_type]
    columns = zip(*map(astuple, rows), strict=True)
    return [encode(column) for encode, column in zip(encoders, columns, strict=True)]


@dataclass(slots=True)
class BatchRows:
    """The rows of a batch, by table."""

    parts: list[PartRow] = field(default_factory=list)
    keys: list[KeyRow] = field(default_factory=list)
    taken: list[TakenRow] = field(default_factory=list)
    consumed: list[ConsumedRow] = field(default_factory=list)
    moved: list[MovedRow] = field(default_factory=list)
    issued: list[IssuedRow] = field(default_factory=list)
    refs: list[RefRow] = field(default_factory=list)
    more: JsonRows = field(default_factory=dict)  # rare things


class PartVerdict:
    """What `append` says of a part."""

    APPENDED = 0
    SHARD_LOST = 1
    KNOWN = 2
    STALE_ATTEMPT = 3
    KNOWN_KEY = 4  # only the key of one event is known
