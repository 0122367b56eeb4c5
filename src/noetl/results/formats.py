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

from noetl.results import moments
from noetl.results.encoding import encode
from noetl.results.rowsets import conformed, values_of
from noetl.results.values import Unfit, columns_of, text

Record = dict[str, Any]
_SPECIAL = r'^$|[",\r\n]'  # a text that must be quoted
_UNFIT = (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError)


# ---- Parquet -----------------------------------------------------------------------------------------------------------------


class ParquetWriter:
    """Writes a file of this schema. A file without rows still has its columns. The writer must be
    closed before its file.
    """

    def __init__(self, file: IO[bytes], schema: pa.Schema) -> None:
        self._schema = schema
        self._writer = pq.ParquetWriter(file, schema, compression="zstd")

    def add(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(conformed(batch, self._schema))

    def close(self) -> None:
        self._writer.close()


class Kinds:
    """Derives the types of plain records. It must see every batch before the first is made into
    columns.

    Null fits any type, integers become doubles, maps get each other's members. Maps and lists
    without a common type are JSON. A number, a text and a bool in one column raise `Unfit`.
    """

    def __init__(self) -> None:
        self._kinds: dict[str, pa.DataType] = {}
        self._words: dict[str, str] = {}  # the kind of each column's first value, in words
        self._seen = 0

    def see(self, records: list[Record]) -> None:
        for name in columns_of(records):
            self._kinds[name] = self._with(name, [record.get(name) for record in records])
        self._seen += len(records)

    def _with(self, name: str, values: list[Any]) -> pa.DataType:
        known = self._kinds.get(name, pa.null())
        if isinstance(known, pa.JsonType):
            return known
        nested = pa.types.is_nested(known) or any(
            isinstance(value, dict | list) for value in values
        )
        if not nested:
            self._alike(name, values)
        try:
            return _common(known, pa.array(values).type)
        except _UNFIT as error:
            if nested:
                return pa.json_()
            raise Unfit(
                name, self._seen, f"or one of those after it has no type: {error}"
            ) from None

    def _alike(self, name: str, values: list[Any]) -> None:
        for number, value in enumerate(values):
            if value is None:
                continue
            word = _word(value)
            first_word = self._words.setdefault(name, word)
            if first_word != word:
                raise Unfit(
                    name, self._seen + number, f"is {word}, and the first one is {first_word}"
                )

    @property
    def schema(self) -> pa.Schema:
        fields: list[tuple[str, pa.DataType]] = []
        for name, kind in self._kinds.items():
            if not _writable(kind):
                kind = pa.json_()
            fields.append((name, kind))
        return pa.schema(fields)


def columns(records: list[Record], schema: pa.Schema, first: int = 0) -> pa.RecordBatch:
    """Make a batch of records that `Kinds` has seen; `first` is the number of the first record."""
    arrays: list[pa.Array] = []
    for field in schema:
        values = [record.get(field.name) for record in records]
        arrays.append(_column(values, field, first))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _column(values: list[Any], field: pa.Field, first: int) -> pa.Array:
    if isinstance(field.type, pa.JsonType):
        texts = [None if value is None else encode(value).decode() for value in values]
        return pa.ExtensionArray.from_storage(field.type, pa.array(texts, pa.string()))
    try:
        return pa.array(values, field.type)
    except _UNFIT as error:  # an integer that no double can hold, in a column of doubles
        raise Unfit(field.name, first, f"or one of those after it does not fit: {error}") from None


def _common(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    schemas = [pa.schema([("", kind)]) for kind in (one, other)]
    unified = pa.unify_schemas(schemas, promote_options="permissive")
    return unified.field(0).type


def _writable(kind: pa.DataType) -> bool:
    """Whether Parquet can store the type: it has no maps without members."""
    members = [kind.field(number).type for number in range(kind.num_fields)]
    if pa.types.is_struct(kind) and not members:
        return False
    return all(map(_writable, members))


def _word(value: Any) -> str:
    match value:
        case bool():
            return "a bool"
        case int() | float():
            return "a number"
        case _:
            return "a text"


# ---- CSV ---------------------------------------------------------------------------------------------------------------------


def csv_header(names: Sequence[str]) -> bytes:
    return _lines([pa.array([name], pa.string()) for name in names])


def csv_rows(batch: pa.RecordBatch) -> bytes:
    columns = zip(batch.columns, batch.schema, strict=True)
    return _lines([_texts(column, field) for column, field in columns])


def csv_records(records: list[Record], names: Sequence[str]) -> bytes:
    cells: list[pa.Array] = []
    for name in names:
        texts = [text(record.get(name)) for record in records]
        cells.append(pa.array(texts, pa.string()))
    return _lines(cells)


def _texts(column: pa.Array, field: pa.Field) -> pa.Array:
    kind = column.type
    if isinstance(kind, pa.JsonType):
        return column.storage.cast(pa.string())
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or _casts(kind):
        return moments.texts(column).cast(pa.string())
    texts = [text(value) for value in values_of(column, field)]
    return pa.array(texts, pa.string())


def _casts(kind: pa.DataType) -> bool:
    """Whether Arrow's own text of the type is the text of a cell."""
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_date(kind)
    )


def _lines(cells: list[pa.Array]) -> bytes:
    if not cells or not len(cells[0]):
        return b""
    quoted = map(_quoted, cells)
    lines = pc.binary_join_element_wise(
        *quoted, ",", null_handling="replace", null_replacement=""
    ).to_pylist()
    return ("\n".join(lines) + "\n").encode()


def _quoted(cells: pa.Array) -> pa.Array:
    special = pc.match_substring_regex(cells, _SPECIAL)
    if not pc.any(special).as_py():
        return cells
    escaped = pc.replace_substring(cells, '"', '""')
    quoted = pc.binary_join_element_wise('"', escaped, '"', "")
    return pc.if_else(special, quoted, cells)
