"""Kinds of failures: the same code, and the same message apart from its numbers and quoted parts."""

import re
from collections.abc import Iterable

from msgspec import Struct
from msgspec.json import encode
from msgspec.structs import replace

from noetl.model.errors import Failure

MAX_KINDS = 8  # kinds of one step that are told apart
MAX_SHAPE_CHARS = 200
MAX_KIND_MESSAGE_CHARS = 300
MAX_KINDS_BYTES = 2_048  # bytes of all kinds in one event
BLANK = "…"
# A quoted part, a hexadecimal name, a number: in this order, because a quoted part may hold the others.
_VARIABLE_PARTS = re.compile(
    r"'[^'\n]*'|\"[^\"\n]*\"|`[^`\n]*`"
    r"|\b(?=[0-9a-fA-F-]*[0-9])(?=[0-9a-fA-F-]*[a-fA-F])[0-9a-fA-F]{8}[0-9a-fA-F-]*\b"
    r"|[-+]?\d[\d_]*(?:[.,]\d+)*"
)


class FailureKind(Struct, frozen=True, omit_defaults=True):
    """How often a kind of failure happened. `first` is the index of its first item."""

    code: str
    shape: str
    count: int = 1
    first: int | None = None
    message: str = ""  # of the first one


def make_failure_shape(message: str) -> str:
    """The message with its numbers and quoted parts blanked."""
    line = message.strip().partition("\n")[0]
    return _VARIABLE_PARTS.sub(BLANK, line[: 2 * MAX_SHAPE_CHARS])[:MAX_SHAPE_CHARS]


def make_failure_kind(error: Failure, count: int = 1, first: int | None = None) -> FailureKind:
    return FailureKind(
        error.code,
        make_failure_shape(error.message),
        count,
        first,
        error.message[:MAX_KIND_MESSAGE_CHARS],
    )


def add_failure_kind(kinds: tuple[FailureKind, ...], kind: FailureKind) -> tuple[FailureKind, ...]:
    """Count a kind among these.

    Of more than `MAX_KINDS` kinds, those with the first items are kept, in any order of counting.
    The counts are exact unless there are more kinds; then they may be too small.
    """
    return merge_failure_kinds(kinds, (kind,))


def merge_failure_kinds(
    left: tuple[FailureKind, ...], right: tuple[FailureKind, ...]
) -> tuple[FailureKind, ...]:
    """Count two lists of kinds together, as `add_failure_kind` does."""
    if not right:
        return left
    merged = {(kind.code, kind.shape): kind for kind in left}
    for kind in right:
        key = (kind.code, kind.shape)
        known = merged.get(key)
        merged[key] = kind if known is None else _join_kinds(known, kind)
    return tuple(sorted(merged.values(), key=_get_rank)[:MAX_KINDS])


def count_failure_kinds(failures: Iterable[tuple[int, Failure]]) -> tuple[FailureKind, ...]:
    """The kinds of these failures of items, small enough for an event."""
    counted: dict[tuple[str, str], FailureKind] = {}
    for index, failure in failures:
        key = (failure.code, make_failure_shape(failure.message))
        known = counted.get(key)
        if known is None:
            message = failure.message[:MAX_KIND_MESSAGE_CHARS]
            counted[key] = FailureKind(*key, 1, index, message)
        else:
            counted[key] = replace(known, count=known.count + 1)
    return fit_failure_kinds(tuple(sorted(counted.values(), key=_get_rank)[:MAX_KINDS]))


def fit_failure_kinds(kinds: tuple[FailureKind, ...]) -> tuple[FailureKind, ...]:
    """The kinds within `MAX_KINDS_BYTES`: without messages, then without the last ones, if need be."""
    if len(encode(kinds)) <= MAX_KINDS_BYTES:
        return kinds
    kinds = tuple(replace(kind, message="") for kind in kinds)
    while len(kinds) > 1 and len(encode(kinds)) > MAX_KINDS_BYTES:
        kinds = kinds[:-1]
    return kinds


def _join_kinds(one: FailureKind, other: FailureKind) -> FailureKind:
    first, later = sorted((one, other), key=_get_rank)
    return replace(first, count=first.count + later.count)


def _get_rank(kind: FailureKind) -> tuple[float, str, str, str]:
    first = float("inf") if kind.first is None else kind.first
    return first, kind.code, kind.shape, kind.message
