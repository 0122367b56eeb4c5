"""Finds numbers that DuckDB would change silently when it casts them to the type of a column.

DuckDB rounds a number with a fraction in a column of integers. In a column of booleans any number
but 0 is true. The same holds inside lists, structs and maps. Rows are checked before they are
written to a table, so that such a value is refused.
"""

import json
import math
from collections.abc import Iterator
from decimal import Decimal, InvalidOperation
from typing import Any

import duckdb

from noetl.tools.sql.statements import quote_sql_name

FIT_BATCH_ROWS = 10_000  # rows
INTEGER_TYPES = frozenset(
    f"{sign}{size}"
    for size in ("tinyint", "smallint", "integer", "bigint", "hugeint")
    for sign in ("", "u")
) | {"bignum"}
FRACTION_TYPES = frozenset(("float", "double", "decimal"))
NESTED_TYPES = frozenset(("list", "array", "struct", "map"))


def find_column_types(connection: duckdb.DuckDBPyConnection, name: str) -> dict[str, Any]:
    """The type of each column of a table or view. `name` is quoted."""
    relation = connection.sql(f"FROM {name} LIMIT 0")
    return dict(zip(relation.columns, relation.types, strict=True))


def may_change(kind: Any) -> bool:
    """Whether DuckDB may change a number that it puts in a column of this type."""
    if kind.id in NESTED_TYPES:
        return any(may_change(part) for part in _type_parts_by_name(kind).values())
    return kind.id in INTEGER_TYPES or kind.id == "boolean"


def explain_misfit(value: Any, kind: Any) -> str | None:
    """Why DuckDB would change this value in a column of this type.

    None if DuckDB would not change it, or would raise an error.
    """
    if kind.id in INTEGER_TYPES:
        if _has_fraction(value):
            return f"is {value}, which is no whole number, as {kind} needs"
        return None
    if kind.id == "boolean":
        if _is_not_boolean(value):
            return f"is {value}, which is neither true nor false"
        return None
    if kind.id not in NESTED_TYPES:
        return None
    for part, inner in _walk_nested(value, kind):
        reason = explain_misfit(part, inner)
        if reason is not None:
            return reason
    return None


def _has_fraction(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value) and not value.is_integer()
    if not isinstance(value, str | Decimal):
        return False
    try:
        number = Decimal(value)
    except InvalidOperation:
        return False
    return number.is_finite() and number != number.to_integral_value()


def _is_not_boolean(value: Any) -> bool:
    return isinstance(value, int | float | Decimal) and value not in (0, 1)


def _walk_nested(value: Any, kind: Any) -> Iterator[tuple[Any, Any]]:
    """The values in a list, a struct or a map, each with its type."""
    parts = _type_parts_by_name(kind)
    if kind.id in ("list", "array") and isinstance(value, list | tuple):
        for part in value:
            yield part, parts["child"]
    if kind.id == "map" and isinstance(value, dict):
        for name in value:
            yield name, parts["key"]
        for part in value.values():
            yield part, parts["value"]
    if kind.id == "struct" and isinstance(value, dict):
        members = {name.lower(): part for name, part in value.items()}
        for name, inner in parts.items():
            yield members.get(name.lower()), inner


def _type_parts_by_name(kind: Any) -> dict[str, Any]:
    children = kind.children
    if kind.id == "array":
        children = children[:1]  # the second one is the size of the array
    return dict(children)


# ---- rows of a view ------------------------------------------------------------------------------


def find_misfit(
    connection: duckdb.DuckDBPyConnection, rows: str, table: str
) -> tuple[str, str] | None:
    """The first column of `rows` with a value that `table` would change, and the reason."""
    table_kinds = find_column_types(connection, table)
    wanted = {name.lower(): kind for name, kind in table_kinds.items()}
    for name, source_kind in find_column_types(connection, rows).items():
        kind = wanted.get(name.lower())
        if kind is None or str(kind) == str(source_kind):
            continue
        if not may_change(kind):
            continue
        reason = _find_misfit_in_column(connection, rows, name, source_kind, kind)
        if reason is not None:
            return name, reason
    return None


def _find_misfit_in_column(
    connection: duckdb.DuckDBPyConnection, rows: str, name: str, source_kind: Any, kind: Any
) -> str | None:
    column = quote_sql_name(name)
    query = f"SELECT {column} FROM {rows} WHERE {column} IS NOT NULL"  # noqa: S608 - quoted names
    if source_kind.id in INTEGER_TYPES and kind.id in INTEGER_TYPES:
        return None
    if kind.id in INTEGER_TYPES and source_kind.id in FRACTION_TYPES:
        query += f" AND {column} <> trunc({column}) LIMIT 1"
    if kind.id in INTEGER_TYPES and source_kind.id == "varchar":
        query += f" AND regexp_matches({column}, '[.eE]')"
    if kind.id == "boolean" and source_kind.id in INTEGER_TYPES | FRACTION_TYPES:
        query += f" AND {column} NOT IN (0, 1) LIMIT 1"
    result = connection.execute(query)
    while batch := result.fetchmany(FIT_BATCH_ROWS):
        for (value,) in batch:
            reason = explain_misfit(_decode_nested(value, source_kind, kind), kind)
            if reason is not None:
                return reason
    return None


def _decode_nested(value: Any, source_kind: Any, kind: Any) -> Any:
    """The value that DuckDB casts: JSON, and text for a column of lists or structs, are decoded."""
    if source_kind.id != "varchar":
        return value
    if str(source_kind) != "JSON" and kind.id not in NESTED_TYPES:
        return value
    try:
        return json.loads(value, parse_float=Decimal)
    except ValueError:
        return value
