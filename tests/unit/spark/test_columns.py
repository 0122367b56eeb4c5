"""Which columns can be stored as which, without a change of any value."""

from itertools import pairwise

import pytest
from pyspark.sql import types as t

from noetl.spark.client.columns import can_store

BYTE, SHORT, INT, LONG = t.ByteType(), t.ShortType(), t.IntegerType(), t.LongType()
FLOAT, DOUBLE, TEXT, NULL = t.FloatType(), t.DoubleType(), t.StringType(), t.NullType()


def _struct(**fields: t.DataType) -> t.StructType:
    return t.StructType([t.StructField(name, kind) for name, kind in fields.items()])


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        *pairwise((BYTE, SHORT, INT, LONG)), (INT, INT), (INT, DOUBLE), (SHORT, FLOAT), (FLOAT, DOUBLE), (NULL, TEXT),
        (INT, t.DecimalType(10, 0)), (INT, t.DecimalType(12, 2)), (t.DecimalType(10, 2), t.DecimalType(12, 3)),
        (t.ArrayType(INT, False), t.ArrayType(LONG)), (t.MapType(TEXT, INT), t.MapType(TEXT, LONG)),
        (_struct(a=INT), _struct(a=LONG)),
    ],
    ids=str,
)  # fmt: skip
def test_a_type_with_room_for_every_value_takes_them(given: t.DataType, wanted: t.DataType) -> None:
    assert can_store(given, wanted)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (LONG, INT), (LONG, DOUBLE), (INT, FLOAT), (DOUBLE, FLOAT), (INT, TEXT), (TEXT, INT), (TEXT, NULL),
        (INT, t.DecimalType(11, 2)), (t.DecimalType(10, 2), t.DecimalType(10, 3)), (t.DecimalType(10, 2), t.DecimalType(12, 1)),
        (t.DecimalType(10, 2), DOUBLE), (t.TimestampType(), t.DateType()), (t.DateType(), t.TimestampType()),
        (t.TimestampType(), t.TimestampNTZType()), (t.ArrayType(LONG), t.ArrayType(INT)), (_struct(a=INT), _struct(b=INT)),
        (_struct(a=INT, b=INT), _struct(b=INT, a=INT)), (_struct(a=INT), _struct(a=INT, b=INT)), (t.BooleanType(), INT),
    ],
    ids=str,
)  # fmt: skip
def test_a_type_that_would_change_a_value_does_not(given: t.DataType, wanted: t.DataType) -> None:
    assert not can_store(given, wanted)
