"""A result for display: a preview of its beginning, or a download of its bytes."""

from collections.abc import AsyncGenerator, Callable
from typing import Any

from msgspec import Struct


class ShownColumn(Struct, frozen=True):
    """A column of a preview. `type` is its Arrow type; None if the values are JSON."""

    name: str
    type: str | None = None


class Preview(Struct, frozen=True, kw_only=True):
    """Either rows and their columns, or the value. Keys that name secrets are left out; long texts
    and lists are shortened. `cut`: there are more rows, or the value is too large to show."""

    row_count: int | None = None
    columns: tuple[ShownColumn, ...] = ()
    rows: list[Any] | None = None
    value: Any = None
    cut: bool = False


class Download(Struct, frozen=True):
    """`parts(start, stop)` yields the bytes between these positions. Without a `size` the bytes are
    made while they are read, always from the first."""

    media_type: str
    extension: str
    parts: Callable[[int, int | None], AsyncGenerator[bytes, None]]
    size: int | None = None
    sha256: str | None = None
