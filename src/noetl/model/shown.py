"""A result as people see it: its beginning, or its bytes."""

from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Any

from msgspec import Struct


class ShownColumn(Struct, frozen=True):
    """`type` is that of Arrow; None where values are JSON."""

    name: str
    type: str | None = None


class Preview(Struct, frozen=True, kw_only=True):
    """Either rows and their columns, or the value. Keys that name secrets are left out, long texts and lists are shortened.
    `cut`: there are more rows, or a value too large to be shown."""

    row_count: int | None = None
    columns: tuple[ShownColumn, ...] = ()
    rows: list[Any] | None = None
    value: Any = None
    cut: bool = False


@dataclass(frozen=True, slots=True)
class Download:
    """`parts(start, stop)` are the bytes between these; without a `size` they are made while they are read, from the first on."""

    media_type: str
    extension: str
    parts: Callable[[int, int | None], AsyncGenerator[bytes, None]]
    size: int | None = None
    sha256: str | None = None
