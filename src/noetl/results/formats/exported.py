"""Rows as files in common formats. Sinks, `transfer` and downloads of results write them the same
way.

Parquet    the types of a row set as they are; `Kinds` derives the types of plain records from all of them
CSV        a header; text is quoted where it must be, and if it is empty: null is an empty cell.
           Values are as in `values.py`: ISO 8601, bytes as base64, lists and maps as JSON.
           Two differ: json is its own text, and decimals keep every digit
"""

from collections.abc import Sequence
from typing import IO, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from noetl.results.formats import moments
from noetl.results.formats.encoding import encode
from noetl.results.formats.rowsets import conform_batch, list_column_values
from noetl.results.formats.values import UnfitValue, list_columns, to_cell_text

Record = dict[str, Any]
_QUOTED_PATTERN = r'^$|[",\r\n]'  # a text that must be quoted
_UNFIT_ERRORS = (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError)


# ---- Parquet -----------------------------------------------------------------------------------------------------------------


class ParquetWriter:
    """Writes a file of this schema. A file without rows still has its columns. The writer must be
    closed before its file.
    """

    def __init__(self, file: IO[bytes], schema: pa.Schema) -> None:
        self._schema = schema
        self._writer = pq.ParquetWriter(file, schema, compression="zstd")

    def add(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(conform_batch(batch, self._schema))

    def close(self) -> None:
        self._writer.close()


class ColumnTypes:
    """Derives the types of plain records. It must see every batch before the first is made into
    columns.

    Null fits any type, integers become doubles, maps get each other's members. Maps and lists
    without a common type are JSON. A number, a text and a bool in one column raise `UnfitValue`.
    """

    def __init__(self) -> None:
        self._kinds: dict[str, pa.DataType] = {}
        self._words: dict[str, str] = {}  # the kind of each column's first value, in words
        self._seen = 0

    def observe_records(self, records: list[Record]) -> None:
        for name in list_columns(records):
            self._kinds[name] = self._widen_type(name, [record.get(name) for record in records])
        self._seen += len(records)

    def _widen_type(self, name: str, values: list[Any]) -> pa.DataType:
        known = self._kinds.get(name, pa.null())
        if isinstance(known, pa.JsonType):
            return known
        nested = pa.types.is_nested(known) or any(
            isinstance(value, dict | list) for value in values
        )
        if not nested:
            self._check_same_kind(name, values)
        try:
            return _find_common_type(known, pa.array(values).type)
        except _UNFIT_ERRORS as error:
            if nested:
                return pa.json_()
            raise UnfitValue(
                name, self._seen, f"or one of those after it has no type: {error}"
            ) from None

    def _check_same_kind(self, name: str, values: list[Any]) -> None:
        for number, value in enumerate(values):
            if value is None:
                continue
            word = _describe_kind(value)
            first_word = self._words.setdefault(name, word)
            if first_word != word:
                raise UnfitValue(
                    name, self._seen + number, f"is {word}, and the first one is {first_word}"
                )

    @property
    def schema(self) -> pa.Schema:
        fields: list[tuple[str, pa.DataType]] = []
        for name, kind in self._kinds.items():
            if not _is_writable(kind):
                kind = pa.json_()
            fields.append((name, kind))
        return pa.schema(fields)


def make_batch(
    records: list[Record],
    schema: pa.Schema,
    first: int = 0,
) -> pa.RecordBatch:
    """Make a batch of records that `Kinds` has seen; `first` is the number of the first record."""
    arrays: list[pa.Array] = []
    for field in schema:
        values = [record.get(field.name) for record in records]
        arrays.append(_make_column(values, field, first))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _make_column(
    values: list[Any],
    field: pa.Field,
    first: int,
) -> pa.Array:
    if isinstance(field.type, pa.JsonType):
        texts = [None if value is None else encode(value).decode() for value in values]
        return pa.ExtensionArray.from_storage(field.type, pa.array(texts, pa.string()))
    try:
        return pa.array(values, field.type)
    except _UNFIT_ERRORS as error:  # an integer that no double can hold, in a column of doubles
        raise UnfitValue(
            field.name, first, f"or one of those after it does not fit: {error}"
        ) from None


def _find_common_type(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    schemas = [pa.schema([("", kind)]) for kind in (one, other)]
    unified = pa.unify_schemas(schemas, promote_options="permissive")
    return unified.field(0).type


def _is_writable(kind: pa.DataType) -> bool:
    """Whether Parquet can store the type: it has no maps without members."""
    members = [kind.field(number).type for number in range(kind.num_fields)]
    if pa.types.is_struct(kind) and not members:
        return False
    return all(map(_is_writable, members))


def _describe_kind(value: Any) -> str:
    match value:
        case bool():
            return "a bool"
        case int() | float():
            return "a number"
        case _:
            return "a text"


# ---- CSV ---------------------------------------------------------------------------------------------------------------------


def encode_csv_header(names: Sequence[str]) -> bytes:
    return _join_lines([pa.array([name], pa.string()) for name in names])


def encode_csv_batch(batch: pa.RecordBatch) -> bytes:
    columns = zip(batch.columns, batch.schema, strict=True)
    return _join_lines([_format_cells(column, field) for column, field in columns])


def encode_csv_records(records: list[Record], names: Sequence[str]) -> bytes:
    cells: list[pa.Array] = []
    for name in names:
        texts = [to_cell_text(record.get(name)) for record in records]
        cells.append(pa.array(texts, pa.string()))
    return _join_lines(cells)


def _format_cells(column: pa.Array, field: pa.Field) -> pa.Array:
    kind = column.type
    if isinstance(kind, pa.JsonType):
        return column.storage.cast(pa.string())
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or _has_arrow_text(kind):
        return moments.format_moments(column).cast(pa.string())
    texts = [to_cell_text(value) for value in list_column_values(column, field)]
    return pa.array(texts, pa.string())


def _has_arrow_text(kind: pa.DataType) -> bool:
    """Whether Arrow's own text of the type is the text of a cell."""
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_date(kind)
    )


def _join_lines(cells: list[pa.Array]) -> bytes:
    if not cells or not len(cells[0]):
        return b""
    quoted = map(_quote_cells, cells)
    lines = pc.binary_join_element_wise(
        *quoted, ",", null_handling="replace", null_replacement=""
    ).to_pylist()
    return ("\n".join(lines) + "\n").encode()


def _quote_cells(cells: pa.Array) -> pa.Array:
    special = pc.match_substring_regex(cells, _QUOTED_PATTERN)
    if not pc.any(special).as_py():
        return cells
    escaped = pc.replace_substring(cells, '"', '""')
    quoted = pc.binary_join_element_wise('"', escaped, '"', "")
    return pc.if_else(special, quoted, cells)
