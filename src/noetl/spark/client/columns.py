"""Makes rows that are added to a folder fit the columns of the files that stay there.

Readers take the columns of a folder from one of its files, and columns of CSV by position. They
would misread rows with other columns or another order. One footer or one header gives the existing
columns; no rows are read. JSON and XML files leave out nulls, so for them only the record of an
earlier commit gives the columns (`commits.py`).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    ByteType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StructField,
    StructType,
)

from noetl.spark.errors import ImpossibleRequest, LocatedError
from noetl.spark.messages import OutputSpec

TYPED_FORMATS = frozenset(("parquet", "orc", "avro"))  # formats that store the types of columns
SPARSE_FORMATS = frozenset(("json", "xml"))  # formats that leave out columns without values
NO_FILES_CONDITIONS = ("PATH_NOT_FOUND", "UNABLE_TO_INFER_SCHEMA")
_REMEDY = (
    "change the step's columns, write to another path, or replace what is there (mode: overwrite)"
)
# The digits of the largest value of a type.
_MAX_DIGITS: dict[type[DataType], int] = {
    ByteType: 3,
    ShortType: 5,
    IntegerType: 10,
    LongType: 19,
}
_WIDER_TYPES: dict[type[DataType], tuple[type[DataType], ...]] = {
    ByteType: (ShortType, IntegerType, LongType, FloatType, DoubleType),
    ShortType: (IntegerType, LongType, FloatType, DoubleType),
    IntegerType: (LongType, DoubleType),
    FloatType: (DoubleType,),
}


@dataclass(frozen=True, slots=True)
class ExistingColumns:
    """The columns of the files at a path, without partition columns, which only name folders.

    `has_names` is False for CSV without a header: then `schema` comes from its first line, and
    `recorded` holds the columns of the last commit, which names them.
    """

    path: str
    schema: StructType
    has_types: bool = True
    has_names: bool = True
    recorded: StructType | None = None


def read_file_columns(
    spark: SparkSession,
    path: str,
    format: str,
    options: dict[str, Any],
) -> StructType | None:
    """The columns of the files at a path, read from one of them.

    None when there are no files, or their format does not store columns.
    """
    if format in SPARSE_FORMATS or format == "text":
        return None
    reader = spark.read.format(format).options(**_select_reader_options(options))
    reader = reader.option("recursiveFileLookup", True)
    return _read_schema(lambda: reader.load(path))


def read_folder_columns(
    spark: SparkSession,
    path: str,
    format: str,
    options: dict[str, Any],
) -> list[str]:
    """The columns of the files at a path, and its partition columns."""
    reader = spark.read.format(format).options(**_select_reader_options(options))
    schema = _read_schema(lambda: reader.load(path))
    return [] if schema is None else schema.names


def _read_schema(load: Callable[[], DataFrame]) -> StructType | None:
    try:
        return load().schema
    except PySparkException as error:
        if error.getCondition() in NO_FILES_CONDITIONS:
            return None
        raise LocatedError("output: what is there cannot be read", error) from error


def _select_reader_options(options: dict[str, Any]) -> dict[str, str]:
    """The options of the writer that a reader of its files needs too."""
    texts = {}
    for name, value in options.items():
        if name.lower() in ("mode", "inferschema"):
            continue
        text = str(value)
        texts[name] = text.lower() if isinstance(value, bool) else text
    return texts


def find_existing_columns(
    spark: SparkSession,
    path: str,
    output: OutputSpec,
    recorded: StructType | None = None,
) -> ExistingColumns | None:
    """The columns of the files at a path, or None if they are unknown.

    `recorded` holds the columns that the last commit recorded.
    """
    format, options = output.format, output.options
    if format in SPARSE_FORMATS:
        if recorded is None:
            return None
        return ExistingColumns(output.path, recorded)
    without_header = format == "csv" and not _has_header(options)
    if without_header:
        options = {name: value for name, value in options.items() if name.lower() != "header"}
        options["header"] = True
    schema = read_file_columns(spark, path, format, options)
    if schema is None or not schema.fields:
        return None
    if without_header:
        return ExistingColumns(output.path, schema, has_names=False, recorded=recorded)
    return ExistingColumns(output.path, schema, has_types=format in TYPED_FORMATS)


def _has_header(options: dict[str, Any]) -> bool:
    texts = {name.lower(): str(value).lower() for name, value in options.items()}
    return texts.get("header") == "true"


# ---- fitting ---------------------------------------------------------------------------------------------------------------


def fit_columns(
    frame: DataFrame, standing: ExistingColumns, partition_by: Iterable[str]
) -> DataFrame:
    """Give the frame the existing columns, in their order and types.

    Returns the frame itself if it has them already. Values never change: a value that the existing
    type cannot hold fails.
    """
    folders = {name.lower() for name in partition_by}
    own = {field.name.lower(): field for field in frame.schema.fields}
    if len(own) != len(frame.columns):
        return frame  # names that differ only in case: Spark refuses them
    data = [field for field in frame.schema.fields if field.name.lower() not in folders]
    if not standing.has_names:
        _check_positions(standing, data)
        if standing.recorded is None:
            return frame
        standing = ExistingColumns(standing.path, standing.recorded, has_types=False)
    wanted = {
        field.name.lower(): field
        for field in standing.schema.fields
        if field.name.lower() not in folders
    }
    _check_column_names(standing, data, wanted)
    if standing.has_types:
        _check_column_types(standing, own, wanted)
    own_names = [field.name for field in data]
    wanted_names = [field.name for field in wanted.values()]
    has_same_names = own_names == wanted_names
    if has_same_names and (not standing.has_types or _has_same_types(own, wanted)):
        return frame
    columns = [_cast_to_existing(own[name], field, standing) for name, field in wanted.items()]
    partitions = [_quote_column(field.name) for name, field in own.items() if name in folders]
    return frame.select(*columns, *partitions)


def _has_same_types(own: dict[str, StructField], wanted: dict[str, StructField]) -> bool:
    pairs = [(own[name].dataType, field.dataType) for name, field in wanted.items()]
    return all(_is_same_type(own_type, wanted_type) for own_type, wanted_type in pairs)


def _check_positions(standing: ExistingColumns, data: list[StructField]) -> None:
    """Check a step that writes CSV without a header.

    If the existing files have a header, readers would skip the first row of the new files.
    """
    names = [field.name.lower() for field in data]
    existing_names = [name.lower() for name in standing.schema.names]
    if sorted(existing_names) == sorted(names):
        raise _make_column_error(
            f"the files of {standing.path} have a header, and this step writes none; leave `header: false` out"
        )
    if len(standing.schema.names) != len(names):
        raise _make_column_error(
            f"{standing.path} has {len(standing.schema.names)} columns, and this step gives {len(names)} "
            f"({', '.join(names)}); {_REMEDY}"
        )


def _check_column_names(
    standing: ExistingColumns,
    data: list[StructField],
    wanted: dict[str, StructField],
) -> None:
    names = {field.name.lower() for field in data}
    missing = [field.name for name, field in wanted.items() if name not in names]
    added = [field.name for field in data if field.name.lower() not in wanted]
    problems = []
    if missing:
        problems.append(f"it lacks {', '.join(missing)}")
    if added:
        problems.append(f"it adds {', '.join(added)}")
    if problems:
        there = ", ".join(standing.schema.names)
        raise _make_column_error(
            f"{standing.path} has the columns {there}, and this step does not: {'; '.join(problems)}. {_make_remedy_sentence()}"
        )


def _check_column_types(
    standing: ExistingColumns,
    own: dict[str, StructField],
    wanted: dict[str, StructField],
) -> None:
    unfit = [
        f"{field.name} is {field.dataType.simpleString()} there and {own[name].dataType.simpleString()} here"
        for name, field in wanted.items()
        if not can_store(own[name].dataType, field.dataType)
    ]
    if unfit:
        raise _make_column_error(
            f"{standing.path} has columns of other types: {'; '.join(unfit)}. Cast them, or {_REMEDY}"
        )


def _make_remedy_sentence() -> str:
    """The remedy as a sentence of its own."""
    return _REMEDY[0].upper() + _REMEDY[1:]


def _make_column_error(message: str) -> LocatedError:
    return LocatedError("output", ImpossibleRequest(message))


def _cast_to_existing(own: StructField, wanted: StructField, standing: ExistingColumns) -> Column:
    column = _quote_column(own.name)
    if standing.has_types and not _is_same_type(own.dataType, wanted.dataType):
        column = column.cast(wanted.dataType)
    return column.alias(wanted.name)


def _quote_column(name: str) -> Column:
    return F.col("`" + name.replace("`", "``") + "`")


# ---- types -----------------------------------------------------------------------------------------------------------------


def can_store(given: DataType, wanted: DataType) -> bool:
    """Whether the type `wanted` holds every value of the type `given`."""
    match given, wanted:
        case NullType(), _:
            return True
        case ArrayType(), ArrayType():
            return can_store(given.elementType, wanted.elementType)
        case MapType(), MapType():
            fits_key = can_store(given.keyType, wanted.keyType)
            return fits_key and can_store(given.valueType, wanted.valueType)
        case StructType(), StructType():
            if given.names != wanted.names:
                return False
            pairs = zip(given.fields, wanted.fields, strict=True)
            return all(can_store(one.dataType, other.dataType) for one, other in pairs)
        case DecimalType(), DecimalType():
            return _has_room_for_digits(given.precision - given.scale, given.scale, wanted)
        case _, DecimalType() if type(given) in _MAX_DIGITS:
            return _has_room_for_digits(_MAX_DIGITS[type(given)], 0, wanted)
    wider_types = _WIDER_TYPES.get(type(given), ())
    return given == wanted or type(wanted) in wider_types


def _has_room_for_digits(before: int, after: int, wanted: DecimalType) -> bool:
    """Whether the type has room for these numbers of digits before and after the point."""
    return wanted.precision - wanted.scale >= before and wanted.scale >= after


def _is_same_type(given: DataType, wanted: DataType) -> bool:
    return can_store(given, wanted) and can_store(wanted, given)
