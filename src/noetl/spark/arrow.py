"""Types of rows that Spark does not have, and what they become on the way to it."""

from uuid import UUID

import pyarrow as pa


def is_foreign(kind: pa.DataType) -> bool:
    """A type that Spark does not read from Parquet."""
    return not native(kind).equals(kind) and not isinstance(kind, pa.JsonType)


def native(kind: pa.DataType) -> pa.DataType:
    if (
        isinstance(kind, pa.UuidType | pa.JsonType)
        or pa.types.is_null(kind)
        or pa.types.is_time(kind)
    ):
        return pa.string()
    if pa.types.is_duration(kind):
        return pa.int64()
    if pa.types.is_timestamp(kind) and kind.unit != "us":
        return pa.timestamp("us", kind.tz)
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def native_schema(schema: pa.Schema) -> pa.Schema:
    return pa.schema([pa.field(field.name, native(field.type)) for field in schema])


def converted(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """With the types of that schema, whose columns they are."""
    columns = [
        _converted(column, field.type) for column, field in zip(batch.columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _converted(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if isinstance(column.type, pa.UuidType):
        return pa.array(
            [
                None if value is None else str(UUID(bytes=value))
                for value in column.storage.to_pylist()
            ]
        )
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    if pa.types.is_timestamp(kind):
        return column.cast(kind, safe=False)
    return column.cast(kind)
