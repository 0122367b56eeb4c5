"""Numbers whose precision nobody knows (`numeric` of Postgres), from their text to a type that Spark has: none is rounded in
silence, and none that does not fit becomes null.
"""

from pyspark.sql import Column
from pyspark.sql import functions as F

from noetl.spark.failures import UNFIT

DECIMAL = "decimal(38,18)"
_FITS = r"^-?0*\d{1,20}(\.\d{0,18}0*)?$"
_SHOWN = 60  # characters of a value


def exact(name: str, column: str) -> Column:
    """The column of that name, of an input of that name."""
    text = F.col("`" + column.replace("`", "``") + "`")
    why = f"{UNFIT}input {name}: column {column} is a numeric without precision, and a value does not fit {DECIMAL}"
    how = "cast it in the query, to a numeric(p, s) or to text"
    said = F.concat(F.lit(f"{why}: "), F.substring(text, 1, _SHOWN), F.lit(f"; {how}"))
    return F.when(text.isNull() | text.rlike(_FITS), text.cast(DECIMAL)).otherwise(
        F.raise_error(said)
    )
