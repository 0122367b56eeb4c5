"""Converts Arrow types that Spark does not have to types that it has."""

from uuid import UUID

import pyarrow as pa


def is_foreign(kind: pa.DataType) -> bool:
    """Whether Spark cannot read this type from Parquet. It reads JSON columns as text."""
    return not find_spark_type(kind).equals(kind) and not isinstance(kind, pa.JsonType)


def find_spark_type(kind: pa.DataType) -> pa.DataType:
    """The Spark type that holds the values of this type."""
    is_text_in_spark = isinstance(kind, pa.UuidType | pa.JsonType)
    if is_text_in_spark or pa.types.is_null(kind) or pa.types.is_time(kind):
        return pa.string()
    if pa.types.is_duration(kind):
        return pa.int64()
    if pa.types.is_timestamp(kind) and kind.unit != "us":
        return pa.timestamp("us", kind.tz)
    if pa.types.is_dictionary(kind):
        return kind.value_type
    return kind


def convert_schema(schema: pa.Schema) -> pa.Schema:
    fields = [pa.field(field.name, find_spark_type(field.type)) for field in schema]
    return pa.schema(fields)


def convert_batch(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Cast the columns of the batch to the types of `schema`, which has the same columns."""
    pairs = zip(batch.columns, schema, strict=True)
    columns = [_convert_column(column, field.type) for column, field in pairs]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _convert_column(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if isinstance(column.type, pa.UuidType):
        values = column.storage.to_pylist()
        texts = [None if value is None else str(UUID(bytes=value)) for value in values]
        return pa.array(texts)
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    if pa.types.is_timestamp(kind):
        return column.cast(kind, safe=False)
    return column.cast(kind)
