"""Rows on their way from a tool to the store. Nothing here needs Arrow; `rowsets.py` writes and
reads them.
"""

from collections.abc import Callable
from typing import Any

from msgspec import Struct, field

from noetl.model.reference import Reference
from noetl.results.staging import PayloadDraft, StagedPayload, Staging


class ValueHead(Struct, frozen=True, omit_defaults=True):
    """The value without its rows: a map with null at the member `at`, where the rows belong.
    Without `at`, the rows are the whole value.
    """

    at: str | None = None
    rest: dict[str, Any] = {}

    def wrap_rows(self, rows: list[Any]) -> Any:
        if self.at is None:
            return rows
        return {**self.rest, self.at: rows}


class TooManyRows(Exception):
    """The rows can be stored, but are too many for one value in memory."""


class EncodedTable(Struct, frozen=True):
    """Rows of a tool: encoded and counted, not yet stored. Its owner closes it after storing it or
    dropping it.
    """

    staged: StagedPayload
    format: str
    rows: int
    columns: list[str]
    head: ValueHead
    value: Callable[[], Any]  # the value in memory; raises TooManyRows if it is too large
    draft: PayloadDraft | None = None

    def close(self) -> None:
        if self.draft is not None:
            self.draft.discard()


class ArrowRecords(Struct, frozen=True):
    """Flat records of a tool as Arrow batches in memory, and the value around them.

    They are exactly the records that JSON would hold.
    """

    head: ValueHead
    batches: list[Any]
    value: Callable[[], Any]  # the value as Python objects
    encode: Callable[["TableOptions"], EncodedTable | None]  # None if Arrow cannot store it


class TableOptions(Struct, frozen=True):
    """What a tool needs to return rows: where to stage them, and the function that redacts each
    batch.
    """

    staging: Staging = field(default_factory=lambda: Staging(None))
    clean: Callable[[Any], Any] | None = None


class TableParts(Struct, frozen=True):
    """Rows of one schema in several files, in order. Each file becomes a payload, and a manifest
    names them all.
    """

    tables: list[EncodedTable]
    columns: list[str]
    close: Callable[[], None]  # the owner calls it after storing the files or dropping them

    @property
    def rows(self) -> int:
        return sum(table.rows for table in self.tables)

    @property
    def head(self) -> ValueHead:
        return ValueHead("rows", {"rows": None, "row_count": self.rows, "columns": self.columns})


class PartsManifest(Struct, frozen=True):
    """The payload of a reference with the format `parts`."""

    head: ValueHead
    parts: list[Reference]


def refuse_value() -> Any:
    """The `value` of tables that are never loaded into memory."""
    raise TooManyRows("rows in files are no value")
