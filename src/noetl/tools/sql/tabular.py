"""Makes Arrow tables of JSON values, for tools that take rows as inputs."""

from typing import Any

import orjson
import pyarrow as pa

from noetl.results.formats.values import list_columns, to_json
from noetl.tools.sql.statements import SqlError


def list_input_rows(name: str, value: Any) -> list[dict[str, Any]]:
    """The rows of an input: a list, or a map with `rows`. Any other map is one row."""
    rows = value
    if isinstance(value, dict):
        rows = value.get("rows", [value])
    if not isinstance(rows, list):
        raise SqlError("SQL_INPUT", f"input {name} is not a list of rows")
    return [row if isinstance(row, dict) else {"value": row} for row in rows]


def make_arrow_table(rows: list[dict[str, Any]]) -> pa.Table:
    """A table with the columns of all rows, in order of appearance.

    If the values of a column have no common type, the column has their JSON texts.
    """
    names = list_columns(rows) or ["value"]
    columns: dict[str, pa.Array] = {}
    for name in names:
        columns[name] = _make_arrow_column([row.get(name) for row in rows])
    return pa.table(columns)


def _make_arrow_column(values: list[Any]) -> pa.Array:
    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        texts = [None if value is None else _to_json_text(value) for value in values]
        return pa.array(texts)


def _to_json_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return orjson.dumps(to_json(value)).decode()
