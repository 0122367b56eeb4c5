"""Converts numbers without a declared precision (`numeric` of Postgres) from text to decimals.

A number that does not fit is an error: it is neither rounded nor replaced by null.
"""

from pyspark.sql import Column
from pyspark.sql import functions as F

from noetl.spark.client.failures import UNFIT_PREFIX

DECIMAL = "decimal(38,18)"
_FITS = r"^-?0*\d{1,20}(\.\d{0,18}0*)?$"
_MAX_SHOWN_CHARS = 60  # characters of a value in the error


def make_decimal_column(name: str, column: str) -> Column:
    """The decimal column for a text column of the input `name`."""
    text = F.col("`" + column.replace("`", "``") + "`")
    why = f"{UNFIT_PREFIX}input {name}: column {column} is a numeric without precision, and a value does not fit {DECIMAL}"
    how = "cast it in the query, to a numeric(p, s) or to text"
    start = F.substring(text, 1, _MAX_SHOWN_CHARS)
    message = F.concat(F.lit(f"{why}: "), start, F.lit(f"; {how}"))
    fits = text.isNull() | text.rlike(_FITS)
    decimal = F.when(fits, text.cast(DECIMAL))
    return decimal.otherwise(F.raise_error(message))
