"""Columns of rows that are added to files: they must be those of the files that stay there.

Readers take the columns of a folder from one of its files, and CSV by position. So rows with other columns, or in another
order, would be read as something else, or not at all. One footer or one header says what is there; no rows are read. JSON and
XML leave out what is null, so of these only the record of an earlier commit says it (`commits.py`).
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

from noetl.spark.errors import Broken, Wrong

TYPED = frozenset(("parquet", "orc", "avro"))  # files that say the types of their columns
SPARSE = frozenset(("json", "xml"))  # files that leave out columns without values
NOTHING_THERE = ("PATH_NOT_FOUND", "UNABLE_TO_INFER_SCHEMA")
_REMEDY = (
    "change the step's columns, write to another path, or replace what is there (mode: overwrite)"
)
_DIGITS: dict[type[DataType], int] = {
    ByteType: 3,
    ShortType: 5,
    IntegerType: 10,
    LongType: 19,
}  # of the largest value
_WIDER: dict[type[DataType], tuple[type[DataType], ...]] = {
    ByteType: (ShortType, IntegerType, LongType, FloatType, DoubleType),
    ShortType: (IntegerType, LongType, FloatType, DoubleType),
    IntegerType: (LongType, DoubleType),
    FloatType: (DoubleType,),
}


@dataclass(frozen=True, slots=True)
class Standing:
    """What is at the path: the columns of its files, without those that only name folders."""

    path: str
    schema: StructType
    has_types: bool = True
    has_names: bool = True  # False: CSV without a header, and `schema` is its first line
    recorded: StructType | None = (
        None  # the columns of a commit: they name those of CSV without a header
    )


def file_columns(
    spark: SparkSession, path: str, format: str, options: dict[str, Any]
) -> StructType | None:
    """Those of the files at a path, from one of them; None when there are none, or they do not say it."""
    if format in SPARSE or format == "text":
        return None
    reader = (
        spark.read.format(format).options(**_reading(options)).option("recursiveFileLookup", True)
    )
    return _read_schema(lambda: reader.load(path))


def folder_columns(
    spark: SparkSession, path: str, format: str, options: dict[str, Any]
) -> list[str]:
    """Columns of the files at a path, and those that name its folders."""
    reader = spark.read.format(format).options(**_reading(options))
    found = _read_schema(lambda: reader.load(path))
    return [] if found is None else found.names


def _read_schema(load: Callable[[], DataFrame]) -> StructType | None:
    try:
        return load().schema
    except PySparkException as error:
        if error.getCondition() in NOTHING_THERE:
            return None
        raise Broken("output: what is there cannot be read", error) from error


def _reading(options: dict[str, Any]) -> dict[str, str]:
    """Options of the writer that say how its files look."""
    texts = {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in options.items()
    }
    return {
        name: value for name, value in texts.items() if name.lower() not in ("mode", "inferschema")
    }


def standing_at(
    spark: SparkSession, path: str, output: dict[str, Any], recorded: StructType | None = None
) -> Standing | None:
    """What the files at a path say of their columns; None when they say nothing. `recorded`: what a commit says of them."""
    format, options = output["format"], output["options"]
    if format in SPARSE:
        return None if recorded is None else Standing(output["path"], recorded)
    without_header = format == "csv" and not _has_header(options)
    if without_header:
        options = {
            **{name: value for name, value in options.items() if name.lower() != "header"},
            "header": True,
        }
    schema = file_columns(spark, path, format, options)
    if schema is None or not schema.fields:
        return None
    if without_header:
        return Standing(output["path"], schema, has_names=False, recorded=recorded)
    return Standing(output["path"], schema, has_types=format in TYPED)


def _has_header(options: dict[str, Any]) -> bool:
    said = {name.lower(): str(value).lower() for name, value in options.items()}
    return said.get("header") == "true"


# ---- fitting ---------------------------------------------------------------------------------------------------------------


def fit(frame: DataFrame, standing: Standing, partition_by: Iterable[str]) -> DataFrame:
    """The frame with the columns of what is there, in their order and types; the frame itself if it has them. Values never
    change: what cannot be stored as it is fails."""
    folders = {name.lower() for name in partition_by}
    own = {field.name.lower(): field for field in frame.schema.fields}
    if len(own) != len(frame.columns):
        return frame  # names that differ in their letters only: Spark refuses them
    data = [field for field in frame.schema.fields if field.name.lower() not in folders]
    if not standing.has_names:
        _check_positions(standing, data)
        if standing.recorded is None:
            return frame
        standing = Standing(standing.path, standing.recorded, has_types=False)
    wanted = {
        field.name.lower(): field
        for field in standing.schema.fields
        if field.name.lower() not in folders
    }
    _check_names(standing, data, wanted)
    if standing.has_types:
        _check_types(standing, own, wanted)
    chosen = [_stored(own[name], field, standing) for name, field in wanted.items()]
    same = [field.name for field in data] == [field.name for field in wanted.values()]
    if same and all(
        _is_same(own[name].dataType, field.dataType)
        for name, field in wanted.items()
        if standing.has_types
    ):
        return frame
    return frame.select(
        *chosen, *(_named(field.name) for field in own.values() if field.name.lower() in folders)
    )


def _check_positions(standing: Standing, data: list[StructField]) -> None:
    """Of CSV without a header. One that has some would be read without the first row of the new files."""
    names = [field.name.lower() for field in data]
    if sorted(name.lower() for name in standing.schema.names) == sorted(names):
        raise _refused(
            f"the files of {standing.path} have a header, and this step writes none; leave `header: false` out"
        )
    if len(standing.schema.names) != len(names):
        raise _refused(
            f"{standing.path} has {len(standing.schema.names)} columns, and this step gives {len(names)} "
            f"({', '.join(names)}); {_REMEDY}"
        )


def _check_names(
    standing: Standing, data: list[StructField], wanted: dict[str, StructField]
) -> None:
    given = {field.name.lower() for field in data}
    missing = [field.name for name, field in wanted.items() if name not in given]
    added = [field.name for field in data if field.name.lower() not in wanted]
    if missing or added:
        parts = [f"it lacks {', '.join(missing)}"] if missing else []
        parts += [f"it adds {', '.join(added)}"] if added else []
        there = ", ".join(standing.schema.names)
        raise _refused(
            f"{standing.path} has the columns {there}, and this step does not: {'; '.join(parts)}. {_fix()}"
        )


def _check_types(
    standing: Standing, own: dict[str, StructField], wanted: dict[str, StructField]
) -> None:
    unfit = [
        f"{field.name} is {field.dataType.simpleString()} there and {own[name].dataType.simpleString()} here"
        for name, field in wanted.items()
        if not can_store(own[name].dataType, field.dataType)
    ]
    if unfit:
        raise _refused(
            f"{standing.path} has columns of other types: {'; '.join(unfit)}. Cast them, or {_REMEDY}"
        )


def _fix() -> str:
    return _REMEDY[0].upper() + _REMEDY[1:]


def _refused(message: str) -> Broken:
    return Broken("output", Wrong(message))


def _stored(own: StructField, wanted: StructField, standing: Standing) -> Column:
    column = _named(own.name)
    if standing.has_types and not _is_same(own.dataType, wanted.dataType):
        column = column.cast(wanted.dataType)
    return column.alias(wanted.name)


def _named(name: str) -> Column:
    return F.col("`" + name.replace("`", "``") + "`")


# ---- types -----------------------------------------------------------------------------------------------------------------


def can_store(given: DataType, wanted: DataType) -> bool:
    """Every value of the one is a value of the other."""
    match given, wanted:
        case NullType(), _:
            return True
        case ArrayType(), ArrayType():
            return can_store(given.elementType, wanted.elementType)
        case MapType(), MapType():
            return can_store(given.keyType, wanted.keyType) and can_store(
                given.valueType, wanted.valueType
            )
        case StructType(), StructType():
            pairs = zip(given.fields, wanted.fields, strict=False)
            return given.names == wanted.names and all(
                can_store(one.dataType, other.dataType) for one, other in pairs
            )
        case DecimalType(), DecimalType():
            return _has_room(given.precision - given.scale, given.scale, wanted)
        case _, DecimalType() if type(given) in _DIGITS:
            return _has_room(_DIGITS[type(given)], 0, wanted)
    return given == wanted or type(wanted) in _WIDER.get(type(given), ())


def _has_room(before: int, after: int, wanted: DecimalType) -> bool:
    """For so many digits before and after the point."""
    return wanted.precision - wanted.scale >= before and wanted.scale >= after


def _is_same(given: DataType, wanted: DataType) -> bool:
    return can_store(given, wanted) and can_store(wanted, given)
