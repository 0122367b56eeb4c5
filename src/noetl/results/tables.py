"""Rows on their way from a tool to the store. Nothing here needs Arrow; `rowsets.py` makes these and reads them again."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from msgspec import Struct, field

from noetl.model.reference import Reference
from noetl.results.staging import PayloadDraft, Staged, Staging


class Head(Struct, frozen=True, omit_defaults=True):
    """The value without its rows: a map, where null stands in their place at the member `at`; or, without that, nothing."""

    at: str | None = None
    rest: dict[str, Any] = {}

    def around(self, rows: list[Any]) -> Any:
        return rows if self.at is None else {**self.rest, self.at: rows}


class TooManyRows(Exception):
    """Rows that can be stored, but are too many for one value in memory."""


@dataclass(frozen=True, slots=True)
class EncodedTable:
    """Rows that a tool has given: encoded, counted, not stored yet. Whoever has stored it, or will not, closes it."""

    staged: Staged
    format: str
    rows: int
    columns: list[str]
    head: Head
    value: Callable[
        [], Any
    ]  # for whoever keeps values in memory; TooLarge when it is none any more
    draft: PayloadDraft | None = None

    def close(self) -> None:
        if self.draft is not None:
            self.draft.discard()


class Tables(Struct, frozen=True):
    """What a tool needs to give rows: where they are staged, and who takes the secrets out of each batch."""

    staging: Staging = field(default_factory=lambda: Staging(None))
    clean: Callable[[Any], Any] | None = None


@dataclass(frozen=True, slots=True)
class Parts:
    """Rows of one schema in several files, in their order: each becomes a payload, and a manifest names them all."""

    tables: list[EncodedTable]
    columns: list[str]
    close: Callable[[], None]  # for whoever has stored it, or will not

    @property
    def rows(self) -> int:
        return sum(table.rows for table in self.tables)

    @property
    def head(self) -> Head:
        return Head("rows", {"rows": None, "row_count": self.rows, "columns": self.columns})


class PartsManifest(Struct, frozen=True):
    """The payload of a reference whose format is `parts`."""

    head: Head
    parts: list[Reference]


def nothing() -> Any:
    """For tables that nobody keeps in memory."""
    raise TooManyRows("rows in files are no value")
