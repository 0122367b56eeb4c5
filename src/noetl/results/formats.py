"""Rows as files that others read, written the same way by sinks, by `transfer` and for whoever downloads a result.

Parquet    the types of a row set as they are; those of plain records are found by looking at all of them (`Kinds`)
CSV        a header; text is quoted where it must be, and where it is empty: null is nothing at all. Values are as `values.py`
           says: ISO 8601, bytes as base64, lists and maps as JSON. Only json is its own text, and decimals keep every digit
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
_SPECIAL = r'^$|[",\r\n]'  # a text that is quoted
_UNFIT = (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError)


# ---- Parquet -----------------------------------------------------------------------------------------------------------------


class ParquetWriter:
    """A file of that schema, which has its columns even with no rows. Closed before its file, whatever comes of it."""

    def __init__(self, file: IO[bytes], schema: pa.Schema) -> None:
        self._schema = schema
        self._writer = pq.ParquetWriter(file, schema, compression="zstd")

    def add(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(conformed(batch, self._schema))

    def close(self) -> None:
        self._writer.close()


class Kinds:
    """The types of plain records, of which every batch is seen before the first is made into columns.

    Null becomes anything, integers become doubles, maps get each other's members. Maps and lists that have no common type are
    JSON; a number, a text and a bool in one column are `Unfit`.
    """

    def __init__(self) -> None:
        self._kinds: dict[str, pa.DataType] = {}
        self._words: dict[str, str] = {}  # what the first value of a column is
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
            word = None if value is None else _word(value)
            if word is not None and self._words.setdefault(name, word) != word:
                raise Unfit(
                    name,
                    self._seen + number,
                    f"is {word}, and the first one is {self._words[name]}",
                )

    @property
    def schema(self) -> pa.Schema:
        kinds = {
            name: kind if _writable(kind) else pa.json_() for name, kind in self._kinds.items()
        }
        return pa.schema(list(kinds.items()))


def columns(records: list[Record], schema: pa.Schema, first: int = 0) -> pa.RecordBatch:
    """Records that `Kinds` has seen; `first` is the number of the first one."""
    arrays = [
        _column([record.get(field.name) for record in records], field, first) for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _column(values: list[Any], field: pa.Field, first: int) -> pa.Array:
    if isinstance(field.type, pa.JsonType):
        texts = [None if value is None else encode(value).decode() for value in values]
        return pa.ExtensionArray.from_storage(field.type, pa.array(texts, pa.string()))
    try:
        return pa.array(values, field.type)
    except _UNFIT as error:  # an integer that no double is, in a column that has doubles elsewhere
        raise Unfit(field.name, first, f"or one of those after it does not fit: {error}") from None


def _common(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    both = [pa.schema([("", kind)]) for kind in (one, other)]
    return pa.unify_schemas(both, promote_options="permissive").field(0).type


def _writable(kind: pa.DataType) -> bool:
    """Parquet has no maps without members."""
    parts = [kind.field(number).type for number in range(kind.num_fields)]
    return not (pa.types.is_struct(kind) and not parts) and all(map(_writable, parts))


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
    return _lines([pa.array([name], pa.string()) for name in names]) if names else b""


def csv_rows(batch: pa.RecordBatch) -> bytes:
    return _lines(
        [_texts(column, field) for column, field in zip(batch.columns, batch.schema, strict=True)]
    )


def csv_records(records: list[Record], names: Sequence[str]) -> bytes:
    return _lines(
        [pa.array([text(record.get(name)) for record in records], pa.string()) for name in names]
    )


def _texts(column: pa.Array, field: pa.Field) -> pa.Array:
    kind = column.type
    if isinstance(kind, pa.JsonType):
        return column.storage.cast(pa.string())
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or _casts(kind):
        return moments.texts(column).cast(pa.string())
    return pa.array([text(value) for value in values_of(column, field)], pa.string())


def _casts(kind: pa.DataType) -> bool:
    """Arrow's own text is what a cell has."""
    return any(
        is_so(kind)
        for is_so in (
            pa.types.is_integer,
            pa.types.is_boolean,
            pa.types.is_decimal,
            pa.types.is_date,
        )
    )


def _lines(cells: list[pa.Array]) -> bytes:
    if not cells or not len(cells[0]):
        return b""
    found = pc.binary_join_element_wise(
        *map(_quoted, cells), ",", null_handling="replace", null_replacement=""
    ).to_pylist()
    return ("\n".join(found) + "\n").encode()


def _quoted(cells: pa.Array) -> pa.Array:
    special = pc.match_substring_regex(cells, _SPECIAL)
    if not pc.any(special).as_py():
        return cells
    escaped = pc.binary_join_element_wise('"', pc.replace_substring(cells, '"', '""'), '"', "")
    return pc.if_else(special, escaped, cells)
