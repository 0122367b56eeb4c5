"""Removes secrets from Arrow columns.

The bytes of a whole column are searched first, which is fast. Single values are searched only if
the column holds a secret.
"""

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc


def redact_batch(
    batch: pa.RecordBatch, forms: Sequence[str], clean: Callable[[Any], Any]
) -> pa.RecordBatch:
    """The batch without secrets.

    `forms` are the texts to find; `clean` removes them from a value.
    """
    texts = [form.encode("utf-8", "surrogatepass") for form in forms]
    numbers = [int(form) for form in forms if form.isdecimal() and int(form) < 2**63]
    schema = _redact_names(batch.schema, clean)
    originals = batch.columns  # each access makes new objects
    columns = [_redact_column(column, texts, numbers, clean) for column in originals]
    is_unchanged = all(new is old for new, old in zip(columns, originals, strict=True))
    if schema is batch.schema and is_unchanged:
        return batch
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def may_hold_secret(batch: pa.RecordBatch, forms: Sequence[str]) -> bool:
    """Whether a plain batch may hold one of the secrets: False is certain, True is not."""
    if any(form in name for form in forms for name in batch.schema.names):
        return True
    texts = [form.encode("utf-8", "surrogatepass") for form in forms]
    numbers = [number for number in map(_parse_number, forms) if number is not None]
    for column in batch.columns:
        if pa.types.is_string(column.type):
            if _contains_any(column, texts):
                return True
        elif numbers and (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
            if pc.any(
                pc.is_in(column.cast(pa.float64(), safe=False), _float_array(numbers))
            ).as_py():
                return True
    return False


def _parse_number(form: str) -> float | None:
    try:
        return float(form)
    except ValueError:
        return None


def _float_array(numbers: Sequence[float]) -> pa.Array:
    return pa.array(numbers, pa.float64())


def _redact_names(schema: pa.Schema, clean: Callable[[Any], Any]) -> pa.Schema:
    names = [clean(name) for name in schema.names]
    if names == schema.names:
        return schema
    fields = [field.with_name(name) for field, name in zip(schema, names, strict=True)]
    return pa.schema(fields, metadata=schema.metadata)


def _redact_column(
    column: pa.Array,
    texts: list[bytes],
    numbers: list[int],
    clean: Callable[[Any], Any],
) -> pa.Array:
    if pa.types.is_integer(column.type):
        return _replace_numbers(column, numbers)
    if _holds_no_text(column.type) or not _contains_any(column, texts):
        return column
    if isinstance(column, pa.ExtensionArray):
        storage = _redact_column(column.storage, texts, numbers, clean)
        return pa.ExtensionArray.from_storage(column.type, storage)
    values = [_redact_value(value, texts, clean) for value in column.to_pylist()]
    return pa.array(values, column.type)


def _holds_no_text(kind: pa.DataType) -> bool:
    """Whether values of this type hold no text."""
    checks = (pa.types.is_primitive, pa.types.is_decimal, pa.types.is_null)
    return any(is_kind(kind) for is_kind in checks)


def _replace_numbers(column: pa.Array, numbers: list[int]) -> pa.Array:
    """The column with null in place of these numbers."""
    if not numbers:
        return column
    integers = column.cast(pa.int64(), safe=False)
    is_secret = pc.is_in(integers, pa.array(numbers, pa.int64()))
    if not is_secret.true_count:
        return column
    return pc.if_else(is_secret, pa.scalar(None, column.type), column)


def _contains_any(column: pa.Array, texts: list[bytes]) -> bool:
    """Whether a buffer of the column holds one of the texts.

    A text that spans two neighbouring values is found too; that only costs a closer look.
    """
    packed = column
    if column.offset:
        packed = pa.concat_arrays([column])
    for buffer in packed.buffers():
        if buffer is None:
            continue
        data = buffer.to_pybytes()
        if any(text in data for text in texts):
            return True
    return False


def _redact_value(
    value: Any,
    texts: list[bytes],
    clean: Callable[[Any], Any],
) -> Any:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, bytes):
        for text in texts:
            value = value.replace(text, b"***")
        return value
    if isinstance(value, dict):
        return {name: _redact_value(part, texts, clean) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_redact_value(part, texts, clean) for part in value]
    return value
