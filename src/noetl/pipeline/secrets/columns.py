"""Removes secrets from Arrow columns.

The bytes of a whole column are searched first, which is fast. Single values are searched only if
the column holds a secret.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

# Returns whether a secret occurs in these bytes.
HoldsForm = Callable[[bytes], bool]


def redact_batch(
    batch: pa.RecordBatch,
    holds: HoldsForm,
    secret_numbers: Mapping[str, float],
    clean: Callable[[Any], Any],
) -> pa.RecordBatch:
    """The batch without secrets.

    `secret_numbers` are those that are numbers, by their text; `clean` removes secrets from a value.
    """
    numbers = [int(text) for text in secret_numbers if text.isdecimal() and int(text) < 2**63]
    schema = _redact_names(batch.schema, clean)
    originals = batch.columns  # each access makes new objects
    columns = [_redact_column(column, holds, numbers, clean) for column in originals]
    is_unchanged = all(new is old for new, old in zip(columns, originals, strict=True))
    if schema is batch.schema and is_unchanged:
        return batch
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def may_hold_secret(batch: pa.RecordBatch, holds: HoldsForm, numbers: Sequence[float]) -> bool:
    """Whether a plain batch may hold one of the secrets: False is certain, True is not."""
    if holds("\0".join(batch.schema.names).encode("utf-8", "surrogatepass")):
        return True
    for column in batch.columns:
        if pa.types.is_string(column.type):
            if _contains_any(column, holds):
                return True
        elif numbers and (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
            if pc.any(
                pc.is_in(column.cast(pa.float64(), safe=False), _float_array(numbers))
            ).as_py():
                return True
    return False


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
    holds: HoldsForm,
    numbers: list[int],
    clean: Callable[[Any], Any],
) -> pa.Array:
    if pa.types.is_integer(column.type):
        return _replace_numbers(column, numbers)
    if _holds_no_text(column.type) or not _contains_any(column, holds):
        return column
    if isinstance(column, pa.ExtensionArray):
        storage = _redact_column(column.storage, holds, numbers, clean)
        return pa.ExtensionArray.from_storage(column.type, storage)
    values = [_redact_value(value, clean) for value in column.to_pylist()]
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


def _contains_any(column: pa.Array, holds: HoldsForm) -> bool:
    """Whether a buffer of the column holds one of the texts.

    A text that spans two neighbouring values is found too; that only costs a closer look.
    """
    packed = column
    if column.offset:
        packed = pa.concat_arrays([column])
    for buffer in packed.buffers():
        if buffer is None:
            continue
        if holds(buffer.to_pybytes()):
            return True
    return False


def _redact_value(
    value: Any,
    clean: Callable[[Any], Any],
) -> Any:
    if isinstance(value, str | bytes):
        return clean(value)
    if isinstance(value, dict):
        return {name: _redact_value(part, clean) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_redact_value(part, clean) for part in value]
    return value
