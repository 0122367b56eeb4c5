"""The data of a sink as records: maps with one value per column, in batches that fit into memory.

Databases get every value as text and read it as the type of its column, like a literal. So numbers
keep every digit, and times are ISO 8601. A map or a list is JSON; in a column of arrays a list is
an array. Bytes are base64, as in templates.
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
from noetl.results.formats.values import list_columns, to_cell_text
from noetl.tools.port import Rows
from noetl.tools.sql.statements import quote_sql_name

SINK_BATCH_ROWS = 1_000  # rows
SQL_RESULT_FIELDS = frozenset(("rows", "row_count", "columns"))
HTTP_RESULT_FIELDS = frozenset(("status_code", "headers", "url", "elapsed", "data"))
BYTES_KEY = "$bytes"
_NAME_PART_PATTERN = re.compile(r'"((?:[^"]|"")+)"|([^".]+)')

Record = dict[str, Any]
Shape = Literal["plain", "json", "bytes"]
Mode = Literal["insert", "upsert", "append", "replace", "staged"]


class SinkError(Exception):
    """The target or the data is not valid."""

    def __init__(
        self, code: str, message: str, *, kind: str = "data", retryable: bool = False, **detail: Any
    ) -> None:
        super().__init__(message)
        self.failure = Failure(
            code=code, kind=kind, message=message, retryable=retryable, detail=detail
        )


class SinkTarget(Struct, frozen=True):
    """The target as the playbook describes it."""

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
    def is_upsert(self) -> bool:
        if self.mode == "staged":
            return bool(self.key)
        return self.mode == "upsert"

    @property
    def needs_key(self) -> bool:
        """Whether the target must store the call's key, so that a repetition adds no rows twice."""
        if self.is_upsert or self.at_least_once:
            return False
        return self.mode in ("insert", "append", "staged")


# ---- rows ----------------------------------------------------------------------------------------


def unwrap_result(value: Any) -> Any:
    """The rows of a SQL result, the data of an HTTP response, or any other value as it is."""
    if isinstance(value, dict) and value.keys() == SQL_RESULT_FIELDS:
        return value["rows"]
    if isinstance(value, dict) and value.keys() >= HTTP_RESULT_FIELDS:
        return unwrap_result(value["data"])
    return value


async def read_record_batches(value: Any) -> AsyncIterator[list[Record]]:
    """The records of a list, of one map or of stored rows. Null has none."""
    seen = 0
    async for batch in _split_value(unwrap_result(value)):
        for row in batch:
            if not isinstance(row, dict):
                message = f"rows[{seen}] is {_describe_type(row)}; a sink stores records: a list of maps, or one map"
                raise SinkError("SINK_DATA", message, row=seen)
            seen += 1
        yield batch


async def _split_value(value: Any) -> AsyncIterator[list[Any]]:
    if isinstance(value, Rows):
        async for batch in value.batches(SINK_BATCH_ROWS):
            yield batch
        return
    if value is None:
        return
    rows = value if isinstance(value, list) else [value]
    for start in range(0, len(rows), SINK_BATCH_ROWS):
        yield rows[start : start + SINK_BATCH_ROWS]


def _describe_type(value: Any) -> str:
    if value is None:
        return "null"
    return f"a {type(value).__name__}"


# ---- values --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SinkColumn:
    """A column of the target. `type` is the database's name of its type."""

    name: str
    type: str
    shape: Shape = "plain"
    array: bool = False  # its values are arrays of that shape

    def format_value(self, value: Any) -> str | None:
        if value is None:
            return None
        if self.array and isinstance(value, list):
            return _format_array(value, self)
        return self._format_single(value)

    def _format_single(self, value: Any) -> str:
        if isinstance(value, dict) and value.keys() == {BYTES_KEY}:
            value = value[BYTES_KEY]
        if self.shape == "json":
            return _to_json_text(value)
        if self.shape == "bytes" and isinstance(value, str):
            return "\\x" + _decode_bytes(value).hex()
        return str(to_cell_text(value))


def _to_json_text(value: Any) -> str:
    return orjson.dumps(value).decode()


def _decode_bytes(value: str) -> bytes:
    try:
        if value.startswith("\\x"):
            return bytes.fromhex(value[2:])
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("is not base64, as bytes are") from None


def _format_array(value: list[Any], column: SinkColumn) -> str:
    return "{" + ",".join(_format_element(part, column) for part in value) + "}"


def _format_element(value: Any, column: SinkColumn) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, list) and column.shape != "json":
        return _format_array(value, column)
    escaped = column._format_single(value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


@dataclass(frozen=True, slots=True)
class SinkTable:
    """A table of the target: its quoted name, and its columns."""

    name: str
    columns: dict[str, SinkColumn]

    def check_key(self, key: Sequence[str]) -> None:
        """Refuse a key with columns that the table does not have."""
        for column in key:
            if column not in self.columns:
                message = f"{self.name} has no column {column!r}, which is part of `key`"
                raise SinkError("SINK_COLUMN", message, kind="config")

    def find_columns(
        self,
        batch: list[Record],
        first: int,
        key: Sequence[str],
    ) -> list[SinkColumn]:
        """The columns of the batch. Refuses unknown columns, and rows without a key.

        `first` is the number of the first row.
        """
        names = list_columns(batch)
        for name in names:
            if name not in self.columns:
                row = first + find_record(batch, name)
                known = ", ".join(self.columns)
                message = (
                    f"{self.name} has no column {name!r}, which rows[{row}] has; it has {known}"
                )
                raise SinkError("SINK_COLUMN", message, table=self.name, column=name, row=row)
        if not names:
            message = f"{self.name}: rows[{first}] is an empty map"
            raise SinkError("SINK_DATA", message, table=self.name, row=first)
        for row, record in enumerate(batch, start=first):
            for name in key:
                if record.get(name) is None:
                    message = f"{self.name}: rows[{row}] has no value for {name!r}, which is part of the key"
                    raise SinkError(
                        "SINK_KEY_MISSING", message, table=self.name, column=name, row=row
                    )
        return [self.columns[name] for name in names]

    def format_rows(
        self, batch: list[Record], columns: Sequence[SinkColumn], first: int
    ) -> list[list[str | None]]:
        """The values of the rows as texts, a list per row."""
        return [
            [self._format_column_value(column, record, row) for column in columns]
            for row, record in enumerate(batch, start=first)
        ]

    def _format_column_value(self, column: SinkColumn, record: Record, row: int) -> str | None:
        try:
            text = column.format_value(record.get(column.name))
        except (ValueError, TypeError, OverflowError) as error:
            raise self.make_value_error(column.name, row, str(error)) from None
        if text is not None and "\0" in text:
            reason = "holds the character zero, which no text in SQL may"
            raise self.make_value_error(column.name, row, reason)
        return text

    def make_value_error(self, column: str, row: int, why: str) -> SinkError:
        message = f"{self.name}.{column}: rows[{row}] {why}"
        return SinkError("SINK_VALUE", message, table=self.name, column=column, row=row)


def find_record(batch: list[Record], name: str) -> int:
    """The number of the first record that has a column."""
    return next(number for number, record in enumerate(batch) if name in record)


def make_conflict_action(columns: Sequence[str], key: Sequence[str]) -> str:
    """The action of ON CONFLICT: overwrite all columns but the key."""
    others = [quote_sql_name(column) for column in columns if column not in key]
    if not others:
        return "NOTHING"
    return "UPDATE SET " + ", ".join(f"{name} = EXCLUDED.{name}" for name in others)


def split_table_name(name: str | None) -> list[str]:
    """The parts of `schema.table`. A part in double quotes may contain a dot."""
    parts: list[str] = []
    for match in _NAME_PART_PATTERN.finditer(name or ""):
        quoted_part, plain_part = match.groups()
        if quoted_part:
            parts.append(quoted_part.replace('""', '"'))
        else:
            parts.append(plain_part)
    if not parts:
        raise SinkError("SINK_TARGET", "the target has no table", kind="config")
    return parts


def quote_sql_names(names: Sequence[str]) -> str:
    return ", ".join(quote_sql_name(name) for name in names)
