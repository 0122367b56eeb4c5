"""Secrets in Arrow columns: looked for in the bytes of a whole column, which is quick, and in single values only when found."""

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc


def cleaned(
    batch: pa.RecordBatch, forms: Sequence[str], clean: Callable[[Any], Any]
) -> pa.RecordBatch:
    """`forms` are the texts to look for; `clean` takes them out of one value."""
    texts = [form.encode("utf-8", "surrogatepass") for form in forms]
    numbers = [int(form) for form in forms if form.isdecimal() and int(form) < 2**63]
    found, schema = batch.columns, _named(batch.schema, clean)
    columns = [_cleaned(column, texts, numbers, clean) for column in found]
    if schema is batch.schema and all(new is old for new, old in zip(columns, found, strict=True)):
        return batch
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _named(schema: pa.Schema, clean: Callable[[Any], Any]) -> pa.Schema:
    names = [clean(name) for name in schema.names]
    if names == schema.names:
        return schema
    fields = [field.with_name(name) for field, name in zip(schema, names, strict=True)]
    return pa.schema(fields, metadata=schema.metadata)


def _cleaned(
    column: pa.Array, texts: list[bytes], numbers: list[int], clean: Callable[[Any], Any]
) -> pa.Array:
    if pa.types.is_integer(column.type):
        return _without(column, numbers)
    if _is_fixed(column.type) or not _holds(column, texts):
        return column
    if isinstance(column, pa.ExtensionArray):
        return pa.ExtensionArray.from_storage(
            column.type, _cleaned(column.storage, texts, numbers, clean)
        )
    return pa.array([_value(value, texts, clean) for value in column.to_pylist()], column.type)


def _is_fixed(kind: pa.DataType) -> bool:
    """No text stands in it."""
    return any(
        is_one(kind) for is_one in (pa.types.is_primitive, pa.types.is_decimal, pa.types.is_null)
    )


def _without(column: pa.Array, numbers: list[int]) -> pa.Array:
    if not numbers:
        return column
    found = pc.is_in(column.cast(pa.int64(), safe=False), pa.array(numbers, pa.int64()))
    return pc.if_else(found, pa.scalar(None, column.type), column) if found.true_count else column


def _holds(column: pa.Array, texts: list[bytes]) -> bool:
    """In any of its buffers: also where two values only meet, which costs a closer look and no more."""
    packed = column if not column.offset else pa.concat_arrays([column])
    data = [buffer.to_pybytes() for buffer in packed.buffers() if buffer is not None]
    return any(text in piece for piece in data for text in texts)


def _value(value: Any, texts: list[bytes], clean: Callable[[Any], Any]) -> Any:
    if isinstance(value, bytes):
        for text in texts:
            value = value.replace(text, b"***")
        return value
    if isinstance(value, dict):
        return {name: _value(part, texts, clean) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_value(part, texts, clean) for part in value]
    return clean(value) if isinstance(value, str) else value
