"""Values of rows as JSON, as templates, Python bodies and people see them. All conversions are
here.

Numbers, text, bools and null stay as they are. A decimal is a number if a double holds it exactly,
else text. An integer beyond 64 bits, infinity and NaN are text. Moments, dates and times are ISO
8601; moments of a row set that have a zone are in UTC. An interval is its seconds, bytes are
base64. Json, lists and structs are native. Anything else (a uuid) is its text.
"""

import base64
import math
from collections.abc import Iterable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import msgspec


def to_json(value: Any) -> Any:
    match value:
        case None | bool() | str():
            return value
        case int():
            return value if -(2**63) <= value < 2**63 else str(value)
        case float():
            return value if math.isfinite(value) else str(value)
        case Decimal():
            return decimal_to_json(value)
        case datetime() | date() | time():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case bytes() | bytearray() | memoryview():
            return base64.b64encode(value).decode()
        case list() | tuple():
            return [to_json(part) for part in value]
        case dict():
            return {str(key): to_json(part) for key, part in value.items()}
        case _:
            return str(value)


def decimal_to_json(value: Decimal) -> int | float | str:
    if not value.is_finite():
        return str(value)
    is_integer = value.as_tuple().exponent == 0 and value == value.to_integral_value()
    if is_integer and abs(value) < 2**63:
        return int(value)
    double = float(value)
    if math.isfinite(double) and Decimal(repr(double)) == value:
        return double
    return str(value)


def list_columns(records: Iterable[dict[str, Any]]) -> list[str]:
    """The names of all columns, in order of appearance."""
    return list(dict.fromkeys(name for record in records for name in record))


def to_cell_text(value: Any) -> str | None:
    """A JSON value as the text of a table cell. Lists and maps are their JSON."""
    match value:
        case None | str():
            return value
        case bool():
            return "true" if value else "false"
        case int() | float():
            return str(value)
        case _:
            return msgspec.json.encode(value).decode()


class UnfitValue(Exception):
    """A value that does not fit into a column with the values before it."""

    def __init__(self, column: str, row: int, why: str) -> None:
        super().__init__(f"column {column!r}: rows[{row}] {why}")
        self.column = column
        self.row = row
