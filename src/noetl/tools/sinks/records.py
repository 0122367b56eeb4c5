"""What a sink stores, as records: maps of one value per column, in batches that memory holds.

Databases get every value as text and read it as the type of its column, as they read a literal: numbers keep every digit, moments
are ISO 8601. A map or a list is JSON, in a column of arrays an array; bytes are base64, as they look in templates.
"""

import base64
import binascii
import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import orjson
from msgspec import Struct

from noetl.model.errors import Failure
from noetl.results.values import columns_of, text
from noetl.tools.port import Rows
from noetl.tools.sql import identifier

BATCH = 1_000  # rows
SQL_RESULT = frozenset(("rows", "row_count", "columns"))
ANSWER = frozenset(("status_code", "headers", "url", "elapsed", "data"))
BYTES = "$bytes"
_NAME = re.compile(r'"((?:[^"]|"")+)"|([^".]+)')

Record = dict[str, Any]
Shape = Literal["plain", "json", "bytes"]
Mode = Literal["insert", "upsert", "append", "replace", "staged"]


class SinkError(Exception):
    """The target or the data is not what it should be."""

    def __init__(
        self, code: str, message: str, *, kind: str = "data", retryable: bool = False, **detail: Any
    ) -> None:
        super().__init__(message)
        self.failure = Failure(
            code=code, kind=kind, message=message, retryable=retryable, detail=detail
        )


class SinkTarget(Struct, frozen=True):
    """Where to, as the playbook says."""

    kind: str
    table: str | None = None
    path: str | None = None
    url: str | None = None
    database: str | None = None
    format: str | None = None
    method: str | None = None
    headers: dict[str, Any] = {}
    mode: Mode = "insert"
    key: list[str] = []
    at_least_once: bool = False
    auth: Any = None

    @property
    def upserts(self) -> bool:
        return self.mode == "upsert" or (self.mode == "staged" and bool(self.key))

    @property
    def keyed(self) -> bool:
        """Repeating it would double rows, unless the target remembers that it was done."""
        return (
            self.mode in ("insert", "append", "staged")
            and not self.upserts
            and not self.at_least_once
        )


# ---- rows --------------------------------------------------------------------------------------------------------------


def meant(value: Any) -> Any:
    """Of a SQL result its rows, of an HTTP answer its data; anything else is meant as it is."""
    if isinstance(value, dict) and value.keys() == SQL_RESULT:
        return value["rows"]
    if isinstance(value, dict) and value.keys() >= ANSWER:
        return meant(value["data"])
    return value


async def batches(value: Any) -> AsyncIterator[list[Record]]:
    """Records of a list, of one map, of stored rows; null is none."""
    seen = 0
    async for batch in _parts(meant(value)):
        for row in batch:
            if not isinstance(row, dict):
                message = f"rows[{seen}] is {_kind(row)}; a sink stores records: a list of maps, or one map"
                raise SinkError("SINK_DATA", message, row=seen)
            seen += 1
        yield batch


async def _parts(value: Any) -> AsyncIterator[list[Any]]:
    if isinstance(value, Rows):
        async for batch in value.batches(BATCH):
            yield batch
        return
    rows = value if isinstance(value, list) else [] if value is None else [value]
    for start in range(0, len(rows), BATCH):
        yield rows[start : start + BATCH]


def _kind(value: Any) -> str:
    return "null" if value is None else f"a {type(value).__name__}"


# ---- values ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SinkColumn:
    """`type` is written as the database writes it."""

    name: str
    type: str
    shape: Shape = "plain"
    array: bool = False  # of that shape

    def text(self, value: Any) -> str | None:
        if value is None:
            return None
        if self.array and isinstance(value, list):
            return _array(value, self)
        return self._single(value)

    def _single(self, value: Any) -> str:
        if isinstance(value, dict) and value.keys() == {BYTES}:
            value = value[BYTES]
        if self.shape == "json":
            return _json(value)
        if self.shape == "bytes" and isinstance(value, str):
            return "\\x" + _decoded(value).hex()
        return str(text(value))


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()


def _decoded(value: str) -> bytes:
    try:
        return (
            bytes.fromhex(value[2:])
            if value.startswith("\\x")
            else base64.b64decode(value, validate=True)
        )
    except (binascii.Error, ValueError):
        raise ValueError("is not base64, as bytes are") from None


def _array(value: list[Any], column: SinkColumn) -> str:
    return "{" + ",".join(_element(part, column) for part in value) + "}"


def _element(value: Any, column: SinkColumn) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, list) and column.shape != "json":
        return _array(value, column)
    escaped = column._single(value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


@dataclass(frozen=True, slots=True)
class SinkTable:
    """A table of the target: its name ready for SQL, and its columns."""

    name: str
    columns: dict[str, SinkColumn]

    def used(self, batch: list[Record], first: int, key: Sequence[str]) -> list[SinkColumn]:
        """The columns that some row of the batch has. Each is known, and each row has its key."""
        names = columns_of(batch)
        if unknown := [name for name in names if name not in self.columns]:
            row = first + next(
                number for number, record in enumerate(batch) if unknown[0] in record
            )
            known = ", ".join(self.columns)
            message = (
                f"{self.name} has no column {unknown[0]!r}, which rows[{row}] has; it has {known}"
            )
            raise SinkError("SINK_COLUMN", message, table=self.name, column=unknown[0], row=row)
        if not names:
            raise SinkError(
                "SINK_DATA",
                f"{self.name}: rows[{first}] is an empty map",
                table=self.name,
                row=first,
            )
        for number, record in enumerate(batch):
            if (
                lacking := next((name for name in key if record.get(name) is None), None)
            ) is not None:
                message = f"{self.name}: rows[{first + number}] has no value for {lacking!r}, which is part of the key"
                raise SinkError(
                    "SINK_KEY_MISSING", message, table=self.name, column=lacking, row=first + number
                )
        return [self.columns[name] for name in names]

    def texts(
        self, batch: list[Record], columns: Sequence[SinkColumn], first: int
    ) -> list[list[str | None]]:
        """A list per row."""
        return [
            [self._text(column, record, first + number) for column in columns]
            for number, record in enumerate(batch)
        ]

    def _text(self, column: SinkColumn, record: Record, row: int) -> str | None:
        try:
            found = column.text(record.get(column.name))
        except (ValueError, TypeError, OverflowError) as error:
            raise self.refused(column.name, row, str(error)) from None
        if found is not None and "\0" in found:
            raise self.refused(
                column.name, row, "holds the character zero, which no text in SQL may"
            )
        return found

    def refused(self, column: str, row: int, why: str) -> SinkError:
        return SinkError(
            "SINK_VALUE",
            f"{self.name}.{column}: rows[{row}] {why}",
            table=self.name,
            column=column,
            row=row,
        )


def name_parts(name: str | None) -> list[str]:
    """`schema.table`; a part in double quotes may hold a dot."""
    parts = [
        found[1].replace('""', '"') if found[1] else found[2]
        for found in _NAME.finditer(name or "")
    ]
    if not parts:
        raise SinkError("SINK_TARGET", "the target has no table", kind="config")
    return parts


def quoted(names: Sequence[str]) -> str:
    return ", ".join(identifier(name) for name in names)
